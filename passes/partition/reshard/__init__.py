"""Reshards: from one sharding of a value to another. They are planned first, in steps with known costs, then
written."""
