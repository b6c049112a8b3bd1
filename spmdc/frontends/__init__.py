"""Front ends: our language (`spmd`), and programs that others wrote, in JAX, StableHLO or HLO.

Such programs are imported by one importer (`stablehlo/importer.py`), which walks a module with jaxlib's own MLIR
bindings. JAX functions are lowered by `jax.jit` (`jax/lowering.py`), HLO text is converted by XLA
(`stablehlo/files.py`).
"""
