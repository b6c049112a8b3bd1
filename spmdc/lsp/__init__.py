"""The language server: what editors show of a program while it is written. Needs the extra `[lsp]`.

Everything is asked of the rest of spmdc: names of `spmdc.frontends.spmd.names`, types of what was read, shardings,
reasons and costs of the plan, which a process of its own makes (`planning.py`) and the next edit ends.
"""
