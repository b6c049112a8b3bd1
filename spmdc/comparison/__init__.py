"""A program beside what XLA's own partitioner makes of it."""
