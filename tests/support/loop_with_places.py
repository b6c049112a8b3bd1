"""A loop in which devices look up positions that depend on their own."""

from __future__ import annotations

LOOP = """
mesh (x=4)

def main(a: s32[3, 12@x], b: s32[3, 20@x]) -> (out: s32[3, 12@x]) {
  n, c = while(i = 0, d = a) cond { return i < 3 } do {
    joined = concatenate(d, b, dim=1)
    return i + 1, slice(joined, start=[0, 7], limit=[3, 19], stride=[1, 1]) + d
  }
  return c
}
"""
"""A loop in which each device needs elements of others, at positions that a chain of integer ops computes from its
own."""
