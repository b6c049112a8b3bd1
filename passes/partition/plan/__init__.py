"""What is decided: how each op is computed on shards, and where values are brought to another sharding."""
