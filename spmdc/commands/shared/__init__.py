"""The parts that verbs share: options, files, the terminal, and the reporting of failures."""
