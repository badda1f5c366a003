"""Cells and layers as modules of Flax NNX."""

from rnncells.nnx.cells import *
from rnncells.nnx.layers import *
from rnncells.nnx.from_linen import FromLinen, convert, from_linen
from rnncells.nnx.to_linen import to_linen
