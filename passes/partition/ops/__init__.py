"""Ops whose local form is more than the op itself on shards, in a file for each family."""
