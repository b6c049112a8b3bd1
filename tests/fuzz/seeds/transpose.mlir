module @transpose attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<6x8x2xf32> {mhlo.sharding = "{devices=[2,2,2]<=[8]}"}) -> tensor<2x6x8xf32> {
    %0 = stablehlo.transpose %arg0, dims = [2, 0, 1] : (tensor<6x8x2xf32>) -> tensor<2x6x8xf32>
    return %0 : tensor<2x6x8xf32>
  }
}

