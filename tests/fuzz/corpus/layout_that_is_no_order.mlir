module @bitcast attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}) -> tensor<48xf32> {
    %0 = mhlo.bitcast %arg0 {result_layout = dense<0> : tensor<2147483648xindex>, source_layout = dense<[2147483648, 0]> : tensor<2xindex>} : (tensor<6x8xf32>) -> tensor<48xf32>
    return %0 : tensor<48xf32>
  }
}

