module @count_leading_zeros attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<16xi32> {mhlo.sharding = "{devices=[8]<=[8]}"}) -> tensor<16xi32> {
    %0 = stablehlo.count_leading_zeros %arg0 : tensor<16xi32>
    return %0 : tensor<16xi32>
  }
}

