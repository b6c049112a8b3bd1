"""Checks: that a partitioned program equals the unpartitioned one, and that ops keep to their rules."""
