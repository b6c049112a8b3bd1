"""The verbs of the command line, one module each, and in `shared` their options, terminal and failures."""
