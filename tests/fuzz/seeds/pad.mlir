module @pad attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}, %arg1: tensor<f32>) -> tensor<14x9xf32> {
    %0 = stablehlo.pad %arg0, %arg1, low = [1, -1], high = [2, 2], interior = [1, 0] : (tensor<6x8xf32>, tensor<f32>) -> tensor<14x9xf32>
    return %0 : tensor<14x9xf32>
  }
}

