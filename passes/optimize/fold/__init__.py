"""Programs made simple: ops whose results are known, or that fewer ops compute, are rewritten."""
