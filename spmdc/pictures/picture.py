"""A picture of a sharding, for a notebook, a terminal or a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from ir.diagnostics import SpmdcError, error, require
from ir.program import Program, Value
from ir.sharding import Sharding, sharding_faults
from ir.spelling.printer import print_sharding, print_type
from spmdc.pictures import boxes, svg, text
from spmdc.pictures.placement import Placement

_MOST_BLOCKS = 4096


@dataclass(frozen=True)
class Picture:
    """The part of a tensor that each device has (`placement`). Notebooks draw it; `str` draws it in letters."""

    placement: Placement
    title: str = ""

    def __repr__(self) -> str:
        return f"<Picture of {self.title}>"

    def __str__(self) -> str:
        return self.text()

    def svg(self) -> str:
        """A self-contained SVG element."""
        return svg.picture(self.placement, self.title)

    def boxes(self, after: Picture) -> str:
        """An SVG element of the boxes that move to other devices in a reshard: the old and new owners of each. Empty if
        there are more than 24 along a dim."""
        return boxes.boxes(self.placement, after.placement)

    def text(self, *, color: bool = False, width: int = 100) -> str:
        """Boxes in a text of that width, with `color` each in the colour of its first device."""
        return f"{self.title}\n{text.drawn(self.placement, color=color, width=width)}"

    def _repr_svg_(self) -> str:
        return self.svg()

    def to_json(self) -> dict[str, object]:
        """The tensor's shape, the blocks along each dim, a block's shape, and for up to 4096 blocks the elements of
        each and the ids of its devices."""
        placement = self.placement
        blocks = [
            {"start": list(block.start), "stop": list(block.stop), "devices": list(block.devices)}
            for block in islice(placement.blocks(), _MOST_BLOCKS)
        ]
        figures = {"title": self.title, "shape": placement.shape, "parts": placement.parts, "shard": placement.shard}
        return {**figures, "replicas": placement.replicas, "blocks": blocks}


def picture(sharding: Sharding, shape: Sequence[int] | None = None) -> Picture:
    """The picture of a tensor of that shape with this sharding; without a shape, each shard has one element.

    Raises SpmdcError (E601; E301 to E308 if the shape has no such sharding)."""
    require(isinstance(sharding, Sharding), "a picture is that of a Sharding", sharding, "partitioned.picture(name)")
    if shape is None:
        return Picture(Placement.of_shards(sharding), print_sharding(sharding))
    faults = sharding_faults(sharding, shape)
    if faults:
        raise SpmdcError([error(*fault, help=f"the mesh is ({sharding.mesh})").diagnostics[0] for fault in faults])
    return Picture(Placement(shape, sharding), f"[{', '.join(map(str, shape))}] {print_sharding(sharding)}")


def picture_of(program: Program, value: Value) -> Picture:
    """The picture of a value; one without a sharding is replicated."""
    whole = value.of or value.type
    sharding = value.sharding or Sharding.replicate(program.mesh, whole.rank)
    return Picture(Placement(whole.shape, sharding), f"{value.name}: {print_type(whole, value.sharding)}")
