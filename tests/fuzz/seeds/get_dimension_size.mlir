module @get_dimension_size attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}) -> tensor<6x8xf32> {
    %0 = stablehlo.get_dimension_size %arg0, dim = 1 : (tensor<6x8xf32>) -> tensor<i32>
    %1 = stablehlo.convert %0 : (tensor<i32>) -> tensor<f32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<6x8xf32>
    %3 = stablehlo.add %arg0, %2 : tensor<6x8xf32>
    return %3 : tensor<6x8xf32>
  }
}

