"""Classes under their names in version 0.1.

They are subclasses: in a compact module the name of a class names its parameters.
"""

from rnncells._user_warning import warn
from rnncells.cells.gates import ElementwiseAffine
from rnncells.layers.multi_layer import MultiLayerRNN


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
    message = f"`rnncells.{old}` is deprecated: write `rnncells.{new}`."
    warn(message, DeprecationWarning)
