"""Ops that are replaced, as they are planned, by others that compute the same and can be split in more ways.

Importing this package registers them all.
"""

from ir.families import import_families

import_families(__name__, __path__)
