"""From the syntax of a text to the program that it says: names resolved, types inferred, loops of consts unrolled."""
