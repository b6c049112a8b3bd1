module @fusion attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func private @fused(%arg0: tensor<6x8xf32>) -> tensor<6x8xf32> {
    %0 = stablehlo.sine %arg0 : tensor<6x8xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<6x8xf32>
    return %1 : tensor<6x8xf32>
  }
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}) -> tensor<6x8xf32> {
    %0 = "mhlo.fusion"(%arg0) <{fusion_kind = #mhlo<fusion_kind kLoop>}> ({
    ^bb0(%arg1: tensor<6x8xf32>):
      %1 = stablehlo.sine %arg1 : tensor<6x8xf32>
      %2 = stablehlo.multiply %arg1, %1 : tensor<6x8xf32>
      mhlo.return %2 : tensor<6x8xf32>
    }) {output_operand_aliasing = []} : (tensor<6x8xf32>) -> tensor<6x8xf32>
    return %0 : tensor<6x8xf32>
  }
}

