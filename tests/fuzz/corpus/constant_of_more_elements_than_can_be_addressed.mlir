module @cosh attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<9223372036854775807x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}) -> tensor<9223372036854775807x8xf32> {
    %0 = mhlo.cosh %arg0 : tensor<9223372036854775807x8xf32>
    return %0 : tensor<9223372036854775807x8xf32>
  }
}

