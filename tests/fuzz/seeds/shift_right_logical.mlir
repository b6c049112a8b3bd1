module @shift_right_logical attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<16xi32> {mhlo.sharding = "{devices=[8]<=[8]}"}, %arg1: tensor<16xi32>) -> tensor<16xi32> {
    %c = stablehlo.constant dense<3> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<16xi32>
    %1 = stablehlo.and %arg1, %0 : tensor<16xi32>
    %2 = stablehlo.shift_right_logical %arg0, %1 : tensor<16xi32>
    return %2 : tensor<16xi32>
  }
}

