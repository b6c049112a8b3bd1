"""JAX functions: spmdc.jit with its stages, transformations and gradients, and annotations inside functions."""
