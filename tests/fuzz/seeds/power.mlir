module @power attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}, %arg1: tensor<6x8xf32>) -> tensor<6x8xf32> {
    %0 = stablehlo.abs %arg0 : tensor<6x8xf32>
    %1 = stablehlo.power %0, %arg1 : tensor<6x8xf32>
    return %1 : tensor<6x8xf32>
  }
}

