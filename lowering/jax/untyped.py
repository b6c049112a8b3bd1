"""What JAX declares without types, or with types that its documentation contradicts: uses of it are not checked."""

from __future__ import annotations

from typing import Any

import jax
from jax.api_util import shaped_abstractify
from jax.sharding import PartitionSpec

struct_of: Any = jax.ShapeDtypeStruct
spec_of: Any = PartitionSpec
type_of: Any = shaped_abstractify
constrained: Any = jax.lax.with_sharding_constraint
settings: Any = jax.config
