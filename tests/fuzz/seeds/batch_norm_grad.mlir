module @batch_norm_grad attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<4x6x3xf32> {mhlo.sharding = "{devices=[4,2,1]<=[8]}"}, %arg1: tensor<3xf32>, %arg2: tensor<3xf32>, %arg3: tensor<3xf32>, %arg4: tensor<4x6x3xf32>) -> tensor<4x6x3xf32> {
    %0 = stablehlo.abs %arg3 : tensor<3xf32>
    %grad_operand, %grad_scale, %grad_offset = "stablehlo.batch_norm_grad"(%arg0, %arg1, %arg2, %0, %arg4) <{epsilon = 1.000000e-03 : f32, feature_index = 2 : i64}> : (tensor<4x6x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4x6x3xf32>) -> (tensor<4x6x3xf32>, tensor<3xf32>, tensor<3xf32>)
    %1 = stablehlo.broadcast_in_dim %grad_scale, dims = [2] : (tensor<3xf32>) -> tensor<4x6x3xf32>
    %2 = stablehlo.add %grad_operand, %1 : tensor<4x6x3xf32>
    return %2 : tensor<4x6x3xf32>
  }
}

