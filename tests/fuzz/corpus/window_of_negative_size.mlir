module @reduce_window_any_body attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func private @norm(%arg0: tensor<f32>, %arg1: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<f32>
    %1 = stablehlo.multiply %arg1, %arg1 : tensor<f32>
    %2 = stablehlo.add %0, %1 : tensor<f32>
    %9223372036854775808 = stablehlo.sqrt %2 : tensor<f32>
    return %9223372036854775808 : tensor<f32>
  }
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}) -> tensor<5x8xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = "stablehlo.reduce_window"(%arg0, %cst) <{base_dilations = array<i64: 1, 1>, padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 2, 9223372036854775808>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %1 = stablehlo.multiply %arg1, %arg1 : tensor<f32>
      %2 = stablehlo.multiply %arg2, %arg2 : tensor<f32>
      %9223372036854775808 = stablehlo.add %1, %2 : tensor<f32>
      %4 = stablehlo.sqrt %9223372036854775808 : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<6x8xf32>, tensor<f32>) -> tensor<5x8xf32>
    return %0 : tensor<5x8xf32>
  }
}

