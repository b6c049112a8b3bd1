module @dynamic_slice attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<1x4xf32> {
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %arg2, sizes = [1, 4] : (tensor<6x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    return %0 : tensor<1x4xf32>
  }
}

