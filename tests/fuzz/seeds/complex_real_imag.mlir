module @complex_real_imag attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}, %arg1: tensor<6x8xf32>) -> tensor<6x8xf32> {
    %0 = stablehlo.complex %arg0, %arg1 : tensor<6x8xcomplex<f32>>
    %1 = stablehlo.multiply %0, %0 : tensor<6x8xcomplex<f32>>
    %2 = stablehlo.real %1 : (tensor<6x8xcomplex<f32>>) -> tensor<6x8xf32>
    %3 = stablehlo.imag %1 : (tensor<6x8xcomplex<f32>>) -> tensor<6x8xf32>
    %4 = stablehlo.add %2, %3 : tensor<6x8xf32>
    return %4 : tensor<6x8xf32>
  }
}

