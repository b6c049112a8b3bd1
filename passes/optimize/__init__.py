"""Imported programs made simple before propagation, and clean-ups after partitioning.

For the latter, equal ops are computed once, unused ops not at all.
"""
