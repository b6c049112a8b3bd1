module @conditional_on_index attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func private @a(%arg0: tensor<6x8xf32>) -> tensor<6x8xf32> {
    %0 = stablehlo.sine %arg0 : tensor<6x8xf32>
    return %0 : tensor<6x8xf32>
  }
  func.func private @b(%arg0: tensor<6x8xf32>) -> tensor<6x8xf32> {
    %0 = stablehlo.cosine %arg0 : tensor<6x8xf32>
    return %0 : tensor<6x8xf32>
  }
  func.func private @c(%arg0: tensor<6x8xf32>) -> tensor<6x8xf32> {
    return %arg0 : tensor<6x8xf32>
  }
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}, %arg1: tensor<i32>) -> tensor<6x8xf32> {
    %0 = "stablehlo.case"(%arg1) ({
      %1 = stablehlo.sine %arg0 : tensor<6x8xf32>
      stablehlo.return %1 : tensor<6x8xf32>
    }, {
      %1 = stablehlo.cosine %arg0 : tensor<6x8xf32>
      stablehlo.return %1 : tensor<6x8xf32>
    }, {
      stablehlo.return %arg0 : tensor<6x8xf32>
    }) : (tensor<i32>) -> tensor<6x8xf32>
    return %0 : tensor<6x8xf32>
  }
}

