module @atanh attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}) -> tensor<6x8xf32> {
    %0 = stablehlo.tanh %arg0 : tensor<6x8xf32>
    %cst = stablehlo.constant dense<0.899999976> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<6x8xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<6x8xf32>
    %3 = mhlo.atanh %2 : tensor<6x8xf32>
    return %3 : tensor<6x8xf32>
  }
}

