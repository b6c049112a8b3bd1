"""Checks that a partitioned program equals the unpartitioned one, and that ops satisfy their rules."""
