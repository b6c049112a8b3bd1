module @convolution_grouped attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<2x8x4xf32> {mhlo.sharding = "{devices=[2,4,1]<=[8]}"}, %arg1: tensor<3x1x8xf32>) -> tensor<2x6x8xf32> {
    %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [1], pad = [[0, 0]], lhs_dilate = [1], rhs_dilate = [1], reverse = [false]} {batch_group_count = 1 : i64, feature_group_count = 4 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x8x4xf32>, tensor<3x1x8xf32>) -> tensor<2x6x8xf32>
    return %0 : tensor<2x6x8xf32>
  }
}

