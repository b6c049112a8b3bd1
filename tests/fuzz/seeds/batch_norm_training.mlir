module @batch_norm_training attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<4x6x3xf32> {mhlo.sharding = "{devices=[4,2,1]<=[8]}"}, %arg1: tensor<3xf32>, %arg2: tensor<3xf32>) -> tensor<4x6x3xf32> {
    %output, %batch_mean, %batch_var = "stablehlo.batch_norm_training"(%arg0, %arg1, %arg2) <{epsilon = 1.000000e-03 : f32, feature_index = 2 : i64}> : (tensor<4x6x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<4x6x3xf32>, tensor<3xf32>, tensor<3xf32>)
    %0 = stablehlo.broadcast_in_dim %batch_var, dims = [2] : (tensor<3xf32>) -> tensor<4x6x3xf32>
    %1 = stablehlo.add %output, %0 : tensor<4x6x3xf32>
    return %1 : tensor<4x6x3xf32>
  }
}

