"""From one sharding of a value to another: planned first, in steps that know their cost, then written."""
