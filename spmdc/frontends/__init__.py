"""Front ends: programs that others wrote, in JAX, StableHLO or HLO.

Everything comes in through one importer (`stablehlo.py`), which walks a module with jaxlib's own MLIR bindings. JAX
functions are lowered by `jax.jit` (`jax_functions.py`), HLO text is converted by XLA (`hlo.py`).
"""
