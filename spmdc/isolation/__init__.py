"""Work in processes of its own: what ends such a process, or never ends in it, ends no more than that."""
