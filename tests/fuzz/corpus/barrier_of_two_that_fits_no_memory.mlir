module @opt_barrier attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<1073741824x16xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}, %arg1: tensor<1073741824x16xf32>) -> tensor<1073741824x16xf32> {
    %0:2 = stablehlo.optimization_barrier %arg0, %arg1 : tensor<1073741824x16xf32>, tensor<1073741824x16xf32>
    %1 = stablehlo.add %0#0, %0#1 : tensor<1073741824x16xf32>
    return %1 : tensor<1073741824x16xf32>
  }
}

