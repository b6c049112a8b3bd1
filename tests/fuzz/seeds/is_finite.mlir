module @is_finite attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}) -> tensor<6x8xi1> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<6x8xf32>
    %1 = stablehlo.divide %arg0, %0 : tensor<6x8xf32>
    %2 = stablehlo.is_finite %1 : (tensor<6x8xf32>) -> tensor<6x8xi1>
    return %2 : tensor<6x8xi1>
  }
}

