"""From a syntax tree to a program: resolves names, infers types, unrolls loops over consts."""
