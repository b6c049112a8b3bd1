"""The language server: what editors show of a program while it is being written. Needs the extra `[lsp]`.

All information comes from the rest of spmdc: names from `spmdc.frontends.spmd.names`, types from the parsed text,
shardings, reasons and costs from the plan, which a separate process makes (`planning.py`) and the next edit cancels.
"""
