"""Clean-ups after partitioning: equal ops are computed once, unused ops not at all."""
