"""The cells of other libraries: names of arrays, transposes, and orders of gates.

An array of another library is written in terms of these blocks of our parameters:

====== ==============================================================================
block  our parameters
====== ==============================================================================
`W`    kernels of inputs, `(features_in, gates * features)`, gates side by side; of
       convolutions `(*kernel_size, channels, gates * features)`
`U`    kernels of states, `(features, gates * features)`, or like those of inputs
`P`    kernel of the projection `hr`, `(features, proj_features)`
`b`    biases, `(gates * features,)`
`b_i`  the first of two biases for each gate, whose sum is `b`
`b_h`  the second. We write zeros, except for n of the GRU, which has two biases.
`b_hn` the second bias of n of the GRU, `(features,)`
====== ==============================================================================

`"W.T"` is the transpose of a block. `"W U"` stacks two blocks along the first axis.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import flax.linen as nn

from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.conv import ConvLSTMCell
from rnncells.cells.gru import GRUCell
from rnncells.cells.lstm import LSTMCell
from rnncells.cells.projected import ProjectedLSTMCell
from rnncells.cells.simple import SimpleCell
from rnncells.cells.variational import VariationalDropout


class Form(NamedTuple):
    """One of our cells in another library."""

    kind: type[RNNCellBase]  # our class
    gates: str  # our letters of the gates in the other library's order; or empty
    # Blocks of each of the other library's arrays, by name. Arrays of biases are absent
    # if the cell has no biases.
    arrays: Mapping[str, str]
    options: Mapping[str, tuple] = {}  # values of our fields that the other library has
    negated: str = ""  # gates whose kernels and biases have the opposite sign
    offsets: Mapping[str, int] = {}  # numbers that are added to our biases, by gate
    side_by_side: str = ""  # our letters in our order, if gates are in `ih` and `hh`

    @property
    def bias_side(self) -> str:
        """Which gates have our biases: gates of inputs, `i`, or of states, `h`."""
        return "h" if issubclass(self.kind, LSTMCell | ProjectedLSTMCell) else "i"

    def gate_names(self, side: str) -> list[str]:
        """Returns our names of the gates of inputs, `i`, or of states, `h`."""
        return [side + gate for gate in self.gates] or [side]

    def fits(self, cell: nn.Module) -> bool:
        """Returns whether the other library's cell computes the same as ours."""
        # A subclass may compute something else; variational dropout changes no weights.
        is_kind = isinstance(cell, self.kind) and (
            isinstance(cell, VariationalDropout)
            or (
                type(cell).project is self.kind.project
                and type(cell).recur is self.kind.recur
            )
        )
        return is_kind and all(
            getattr(cell, field) in values for field, values in self.options.items()
        )

    def __str__(self) -> str:
        options = [
            f"{field}={' or '.join(str(getattr(v, '__name__', v)) for v in values)}"
            for field, values in self.options.items()
        ]
        return self.kind.__name__ + (f"({', '.join(options)})" if options else "")


class Library:
    """Another library, by its name and its cells."""

    def __init__(self, name: str, *forms: Form):
        self.name, self.forms = name, forms

    def form_of(self, cell: nn.Module) -> Form:
        """Returns the form of a cell; raises TypeError if the library has none."""
        for form in self.forms:
            if form.fits(cell):
                return form
        raise TypeError(
            f"`layer` must consist of cells that {self.name} also has: "
            f"{', '.join(map(str, self.forms))}; got {described(cell)}."
        )


def described(layer: nn.Module) -> str:
    """Returns the constructor call of a layer or cell, without default values."""
    arguments = []
    for field in dataclasses.fields(layer):
        if field.init and field.name not in ("parent", "name"):
            value = getattr(layer, field.name)
            if value is not field.default:
                arguments.append(f"{field.name}={getattr(value, '__name__', value)}")
    return f"{type(layer).__name__}({', '.join(arguments)})"


DEFAULTS = {"gate_fn": (nn.sigmoid,), "activation_fn": (nn.tanh,)}
BIASES = {"use_bias": (True,)}
RESET_AFTER, RESET_BEFORE = {"reset_after": (True,)}, {"reset_after": (False,)}
NOT_RESIDUAL = {"residual": (False,)}

PYTORCH_ARRAYS = {
    "weight_ih": "W.T",
    "weight_hh": "U.T",
    "bias_ih": "b_i",
    "bias_hh": "b_h",
}
TANH_OR_RELU = NOT_RESIDUAL | {"activation_fn": (nn.tanh, nn.relu)}
PYTORCH = Library(
    "PyTorch",
    Form(LSTMCell, "ifgo", PYTORCH_ARRAYS, DEFAULTS),
    Form(ProjectedLSTMCell, "ifgo", PYTORCH_ARRAYS | {"weight_hr": "P.T"}, DEFAULTS),
    Form(GRUCell, "rzn", PYTORCH_ARRAYS, DEFAULTS | RESET_AFTER),
    Form(SimpleCell, "", PYTORCH_ARRAYS, TANH_OR_RELU),
)

KERAS_ARRAYS = {"kernel": "W", "recurrent_kernel": "U", "bias": "b"}
KERAS = Library(
    "Keras",
    Form(LSTMCell, "ifgo", KERAS_ARRAYS),
    Form(GRUCell, "zrn", KERAS_ARRAYS | {"bias": "b_i b_h"}, RESET_AFTER),
    Form(GRUCell, "zrn", KERAS_ARRAYS, RESET_BEFORE),
    Form(SimpleCell, "", KERAS_ARRAYS, NOT_RESIDUAL),
    Form(
        ConvLSTMCell,
        gates="ifgo",
        arrays=KERAS_ARRAYS,
        options=BIASES | {"peepholes": (False,)},
        offsets={"f": 1},
        side_by_side="igfo",
    ),
)

HAIKU_ARRAYS = {
    "linear/w": "W",
    "linear/b": "b_i",
    "linear_1/w": "U",
    "linear_1/b": "b_h",
}
RELU = NOT_RESIDUAL | BIASES | {"activation_fn": (nn.relu,)}
HAIKU = Library(
    "Haiku",
    Form(
        LSTMCell,
        gates="igfo",
        arrays={"linear/w": "W U", "linear/b": "b"},
        options=DEFAULTS | BIASES,
        offsets={"f": -1},
    ),
    Form(
        GRUCell,
        gates="zrn",
        arrays={"w_i": "W", "w_h": "U", "b": "b"},
        options=DEFAULTS | BIASES | RESET_BEFORE,
        negated="z",
    ),
    Form(SimpleCell, "", HAIKU_ARRAYS, RELU),
)

EQUINOX_ARRAYS = {"weight_ih": "W.T", "weight_hh": "U.T", "bias": "b"}
EQUINOX = Library(
    "Equinox",
    Form(LSTMCell, "ifgo", EQUINOX_ARRAYS, DEFAULTS),
    Form(GRUCell, "rzn", EQUINOX_ARRAYS | {"bias_n": "b_hn"}, DEFAULTS | RESET_AFTER),
)

# GRUCell of Flax NNX has no bias b_hn.
FLAX_NNX_ARRAYS = {"dense_i.kernel": "W", "dense_h.kernel": "U"}
FLAX_NNX = Library(
    "Flax NNX",
    Form(LSTMCell, "ifgo", FLAX_NNX_ARRAYS | {"dense_h.bias": "b"}, BIASES),
    Form(GRUCell, "rzn", FLAX_NNX_ARRAYS | {"dense_i.bias": "b"}, BIASES | RESET_AFTER),
    Form(SimpleCell, "", FLAX_NNX_ARRAYS | {"dense_i.bias": "b"}, BIASES),
)
