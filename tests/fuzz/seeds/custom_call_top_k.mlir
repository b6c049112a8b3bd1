module @custom_call_top_k attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func private @above(%arg0: tensor<f32>, %arg1: tensor<f32>, %arg2: tensor<i32>, %arg3: tensor<i32>) -> tensor<i1> {
    %0 = stablehlo.compare GT, %arg0, %arg1, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    return %0 : tensor<i1>
  }
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}) -> tensor<6x2xf32> {
    %0 = stablehlo.custom_call @TopK(%arg0) {backend_config = "", called_computations = [@above], xla_shape = "(f32[6,2]{1,0}, s32[6,2]{1,0})"} : (tensor<6x8xf32>) -> tuple<tensor<6x2xf32>, tensor<6x2xi32>>
    %1 = stablehlo.get_tuple_element %0[0] : (tuple<tensor<6x2xf32>, tensor<6x2xi32>>) -> tensor<6x2xf32>
    return %1 : tensor<6x2xf32>
  }
}

