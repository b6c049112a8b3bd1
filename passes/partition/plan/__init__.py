"""Decides how each op is computed on shards, and where values are resharded."""
