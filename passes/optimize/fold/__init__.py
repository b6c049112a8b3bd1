"""Simplifies programs: ops whose results are known, or that fewer ops can compute, are rewritten."""
