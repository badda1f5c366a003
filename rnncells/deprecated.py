"""Classes under their names in version 0.1.

They are subclasses: in a compact module the name of a class names its parameters.
"""

import os
import sys
import warnings

import flax

from rnncells.cells.gates import ElementwiseAffine
from rnncells.layers.deep import MultiLayerRNN

# Code between a call of the user and these classes; "<string>" is that of dataclasses.
_INTERNAL = (
    *(os.path.dirname(file) + os.sep for file in (__file__, flax.__file__)),
    "<string>",
)


class Diagonal(ElementwiseAffine):
    """Deprecated: `rnncells.ElementwiseAffine`."""

    def __post_init__(self):
        _warn("Diagonal", "ElementwiseAffine")
        super().__post_init__()


class DeepRNN(MultiLayerRNN, kw_only=True):
    """Deprecated: `rnncells.MultiLayerRNN`."""

    def __post_init__(self):
        _warn("DeepRNN", "MultiLayerRNN")
        super().__post_init__()


def _warn(old: str, new: str) -> None:
    """Warns at the line of the user."""
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(_INTERNAL) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    message = f"`rnncells.{old}` is deprecated: write `rnncells.{new}`."
    warnings.warn(message, DeprecationWarning, stacklevel=level)
