"""What the language has beyond ops: functions that are said in ops, such as einsum, softmax and rng."""
