module @top_k attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}) -> tensor<6x3xi32> {
    %values, %indices = mhlo.topk(%arg0, k = 3) : tensor<6x8xf32> -> (tensor<6x3xf32>, tensor<6x3xi32>)
    return %indices : tensor<6x3xi32>
  }
}

