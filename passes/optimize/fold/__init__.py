"""Programs made simple: ops whose results are known, or that other ops say with less, are rewritten."""
