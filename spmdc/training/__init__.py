"""Training: what `spmdc train` reads, does in each step, keeps and reports."""
