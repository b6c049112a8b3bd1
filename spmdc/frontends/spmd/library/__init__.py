"""Compositions: functions of the language that expand to ops, such as einsum, softmax and rng."""
