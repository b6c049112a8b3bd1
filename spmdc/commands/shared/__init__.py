"""What the verbs of the command line share: options, files, the terminal, and what is reported of failures."""
