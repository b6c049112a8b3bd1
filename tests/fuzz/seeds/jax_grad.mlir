module @jit__lambda attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4, "y"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 4 : i64}, {name = "y", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}, %arg2: tensor<12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>}) -> (tensor<16x8xf32> {jax.result_info = "result[0]"}, tensor<8x12xf32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x8xf32>, tensor<8x12xf32>) -> tensor<16x12xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<12xf32>) -> tensor<1x12xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x12xf32>) -> tensor<16x12xf32>
    %3 = stablehlo.add %0, %2 : tensor<16x12xf32>
    %4 = call @relu(%3) : (tensor<16x12xf32>) -> tensor<16x12xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<16x12xf32>
    %6 = stablehlo.compare GT, %3, %5, FLOAT : (tensor<16x12xf32>, tensor<16x12xf32>) -> tensor<16x12xi1>
    %7 = sdy.sharding_constraint %4 <@mesh, [{"x"}, {}]> : tensor<16x12xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %8 = stablehlo.reduce(%7 init: %cst_0) applies stablehlo.maximum across dimensions = [1] : (tensor<16x12xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %10 = stablehlo.maximum %9, %8 : tensor<16xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0] : (tensor<16xf32>) -> tensor<16x1xf32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0, 1] : (tensor<16x1xf32>) -> tensor<16x12xf32>
    %13 = stablehlo.subtract %7, %12 : tensor<16x12xf32>
    %14 = stablehlo.exponential %13 : tensor<16x12xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %15 = stablehlo.reduce(%14 init: %cst_2) applies stablehlo.add across dimensions = [1] : (tensor<16x12xf32>, tensor<f32>) -> tensor<16xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0] : (tensor<16xf32>) -> tensor<16x1xf32>
    %17 = stablehlo.multiply %16, %16 : tensor<16x1xf32>
    %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %18 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<16x1xf32>
    %19 = stablehlo.divide %18, %17 : tensor<16x1xf32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<16x12xf32>
    %21 = stablehlo.broadcast_in_dim %19, dims = [0, 1] : (tensor<16x1xf32>) -> tensor<16x12xf32>
    %22 = stablehlo.multiply %20, %21 : tensor<16x12xf32>
    %23 = stablehlo.multiply %22, %14 : tensor<16x12xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %24 = stablehlo.reduce(%23 init: %cst_5) applies stablehlo.add across dimensions = [1] : (tensor<16x12xf32>, tensor<f32>) -> tensor<16xf32>
    %25 = stablehlo.reshape %24 : (tensor<16xf32>) -> tensor<16x1xf32>
    %26 = stablehlo.negate %25 : tensor<16x1xf32>
    %27 = stablehlo.broadcast_in_dim %16, dims = [0, 1] : (tensor<16x1xf32>) -> tensor<16x12xf32>
    %28 = stablehlo.divide %20, %27 : tensor<16x12xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %29 = stablehlo.reduce(%26 init: %cst_6) applies stablehlo.add across dimensions = [1] : (tensor<16x1xf32>, tensor<f32>) -> tensor<16xf32>
    %30 = stablehlo.broadcast_in_dim %29, dims = [0] : (tensor<16xf32>) -> tensor<16x12xf32>
    %31 = stablehlo.add %28, %30 : tensor<16x12xf32>
    %32 = stablehlo.multiply %31, %14 : tensor<16x12xf32>
    %33 = sdy.sharding_constraint %32 <@mesh, [{"x"}, {}]> : tensor<16x12xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %34 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<16x12xf32>
    %35 = stablehlo.select %6, %33, %34 : tensor<16x12xi1>, tensor<16x12xf32>
    %36 = stablehlo.dot_general %35, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x12xf32>, tensor<16x8xf32>) -> tensor<12x8xf32>
    %37 = stablehlo.transpose %36, dims = [1, 0] : (tensor<12x8xf32>) -> tensor<8x12xf32>
    %38 = stablehlo.dot_general %35, %arg1, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<16x12xf32>, tensor<8x12xf32>) -> tensor<16x8xf32>
    return %38, %37 : tensor<16x8xf32>, tensor<8x12xf32>
  }
  func.func private @relu(%arg0: tensor<16x12xf32>) -> tensor<16x12xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<16x12xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<16x12xf32>
    return %1 : tensor<16x12xf32>
  }
}
