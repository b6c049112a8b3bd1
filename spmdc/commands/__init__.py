"""The verbs of the command line, a module each, with what they share: options, terminal, failures."""
