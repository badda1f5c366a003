"""The cases: cells, and the sizes of their sequences."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

# Cells without a product of the carry with a matrix.
ELEMENTWISE = ("MinGRU", "IndRNN")
CELLS = ("LSTM", "GRU", "CompactLSTM", "ConvLSTM", *ELEMENTWISE)
MODES = ("forward", "gradient")
KERNEL = (3, 3)


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of one benchmark.

    Attributes:
      name: name in the tables.
      batch: number of sequences.
      time: number of steps.
      features_in: width, or channels, of the inputs.
      features: units, or filters, of the cell.
      image: height and width of each input; empty for vectors.
      dtype: dtype of parameters, inputs and carries.
    """

    name: str
    batch: int
    time: int
    features_in: int
    features: int
    image: tuple[int, ...] = ()
    dtype: str = "float32"

    @property
    def inputs_shape(self) -> tuple[int, ...]:
        """Shape of the inputs, time first."""
        return (self.time, self.batch, *self.image, self.features_in)


def describe(size: dict[str, Any]) -> str:
    """Describes a size: batch x time, features in and out.

    Args:
      size: the fields of a `Size`, as in the results.
    """
    inputs = "×".join(str(length) for length in (*size["image"], size["features_in"]))
    dtype = "" if size["dtype"] == "float32" else f", {size['dtype']}"
    return f"{size['batch']}×{size['time']}, {inputs}→{size['features']}{dtype}"


def _gpu_sizes() -> tuple[Size, ...]:
    return tuple(
        Size(
            f"gpu-{batch}-{features}-{dtype}",
            batch,
            1024,
            features,
            features,
            dtype=dtype,
        )
        for dtype, batch, features in itertools.product(
            ("float32", "bfloat16", "float16"), (16, 64), (256, 768, 1024)
        )
    )


# Groups of sizes, by name.
SIZES = {
    "tiny": (Size("tiny", 1, 100, 8, 8),),
    "small": (Size("small", 32, 100, 64, 128),),
    "medium": (Size("medium", 64, 128, 256, 512),),
    "large": (Size("large", 32, 64, 512, 1024),),
    "long": (Size("long", 8, 4096, 64, 128),),
    "images": (Size("images", 4, 16, 3, 32, image=(32, 32)),),
    "elementwise": (
        Size("elementwise-short", 32, 100, 128, 128),
        Size("elementwise-wide", 64, 50, 256, 256),
        Size("elementwise-long", 8, 1000, 128, 128),
    ),
    "gpu": _gpu_sizes(),
}
# The values of `--sizes`: a group, or one size of it.
SIZE_NAMES = tuple(
    dict.fromkeys([*SIZES, *(size.name for size in itertools.chain(*SIZES.values()))])
)
# The groups of a cell; those of vectors otherwise.
_SIZES_OF = {"ConvLSTM": ("images",)} | dict.fromkeys(ELEMENTWISE, ("elementwise",))
_OF_VECTORS = ("tiny", "small", "medium", "large", "long", "gpu")
# Without `gpu`, which would take too long on a CPU.
DEFAULT_SIZES = tuple(name for name in SIZES if name != "gpu")


def cases(cells: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, Size]]:
    """Yields each cell with each size that it can run on.

    Args:
      cells: names in `CELLS`.
      names: names in `SIZE_NAMES`.
    """
    for cell, (group, sizes) in itertools.product(cells, SIZES.items()):
        if group in _SIZES_OF.get(cell, _OF_VECTORS):
            yield from (
                (cell, size) for size in sizes if {group, size.name} & set(names)
            )
