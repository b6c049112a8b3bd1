"""Ops whose local form is more than the op itself on shards, in a file for each family.

Importing this package registers them all.
"""

from ir.families import import_families

import_families(__name__, __path__)
