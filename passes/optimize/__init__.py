"""Passes that simplify imported programs before propagation, and that clean up SPMD programs.

In the latter, equal ops are computed once, and unused ops not at all.
"""
