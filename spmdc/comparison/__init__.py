"""Compares a program with the result of XLA's own partitioner."""
