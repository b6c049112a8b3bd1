module @conditional_on_pred attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func private @yes(%arg0: tensor<6x8xf32>) -> tensor<6x8xf32> {
    %0 = stablehlo.sine %arg0 : tensor<6x8xf32>
    return %0 : tensor<6x8xf32>
  }
  func.func private @no(%arg0: tensor<6x8xf32>) -> tensor<6x8xf32> {
    %0 = stablehlo.cosine %arg0 : tensor<6x8xf32>
    return %0 : tensor<6x8xf32>
  }
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}, %arg1: tensor<i1>) -> tensor<6x8xf32> {
    %0 = "stablehlo.if"(%arg1) ({
      %1 = stablehlo.sine %arg0 : tensor<6x8xf32>
      stablehlo.return %1 : tensor<6x8xf32>
    }, {
      %1 = stablehlo.cosine %arg0 : tensor<6x8xf32>
      stablehlo.return %1 : tensor<6x8xf32>
    }) : (tensor<i1>) -> tensor<6x8xf32>
    return %0 : tensor<6x8xf32>
  }
}

