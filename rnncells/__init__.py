"""Recurrent cells for Flax, and layers that run them over time.

>>> import jax, jax.numpy as jnp, rnncells
>>> rnn = rnncells.RNN(rnncells.LSTMCell(4))
>>> y, params = rnn.init_with_output(jax.random.key(0), jnp.ones((2, 5, 3)))
>>> y.shape  # (batch, time, features)
(2, 5, 4)

Every name has its own help, for example `help(rnncells.RNN)`.

Cells for one step, called as `carry, output = cell(carry, inputs)`:

  SimpleCell, LSTMCell, OptimizedLSTMCell, GRUCell, MGUCell,
  ProjectedLSTMCell, PeepholeLSTMCell, CoupledLSTMCell, LayerNormLSTMCell,
  LayerNormGRUCell, ConvLSTMCell, ConvGRUCell, LSTM1997Cell, LSTM2000Cell,
  SLSTMCell, IndRNNCell, SRUCell, CausalConvCell, CfCCell, LTCCell

Cells that are linear in their carry, which `RNN` runs in parallel:

  MinGRUCell, MinLSTMCell, QRNNCell, LRUCell, RGLRUCell, MLSTMCell,
  DeltaNetCell, GatedDeltaNetCell

Wrappers and dropout:

  StackedCell, ZoneoutCell, DropConnectCell, VariationalLSTMCell,
  VariationalGRUCell, VariationalDropout

Layers for whole sequences, with lengths, masks and resets:

  RNN, Bidirectional, LSTM, GRU, ElmanRNN, MultiLayerRNN, Stack, LSTMStates,
  XLSTMBlock, GriffinBlock, SequenceLayer, Chunk, Newton, Certificate,
  feature_shardings

Gradient methods, as in `RNN(cell, gradient=SnAp(1))`:

  Bptt, TruncatedBptt, Truncated1997, Rtrl, BlockRtrl, SnAp, Rflo, Uoro,
  Online, OnlineState, accumulate, Accumulated

To write your own cell:

  RNNCellBase, LinearRNNCellBase, MatrixRNNCellBase, ElementwiseAffine,
  check_cell

Submodules, which need no import of their own:

  gradients      How the gradient of a recurrence is formed: `RNN(cell,
                 gradient=...)`
  initializers   Initializers in addition to those of JAX
  packing        Sequence packing: several sequences in each row, to save
                 most of the padding
  reference      Closed forms of steps and their derivatives, for reading
                 and for tests

More submodules:

  diagnostics    What a recurrence computes, and how gradients flow
  plots          Pictures of these values; needs matplotlib
  nnx            All cells and layers as modules of Flax NNX
  interop        Weights of PyTorch, Keras, Haiku, Equinox; files
  testing        `check_cell` and its report
  legacy         Runs code for Flax <= 0.6.11 unchanged
  cells, layers  Files of the cells and layers above
"""

import importlib
from typing import TYPE_CHECKING, Any

from rnncells import _lazy

__version__ = "0.2.0"
# Submodules for users, in addition to those in rnncells/public.py.
_SUBMODULES = "cells diagnostics interop layers legacy nnx plots testing".split()

# rnncells/public.py lists the public names. They are imported when one of them is first
# used (PEP 562), so that `rnncells --help` does not import JAX and Flax.
if TYPE_CHECKING:
    from rnncells.public import *
else:
    # Type checkers do not see this function: it would hide misspelled names from them.
    def __getattr__(name: str) -> Any:
        """Imports a submodule or, for any other name, all public names."""
        if _lazy.is_submodule(__name__, name):
            return importlib.import_module(f"{__name__}.{name}")
        if name == "__all__" or (name.isidentifier() and not name.startswith("_")):
            # Names that the user has set keep their values.
            globals().update({**_public_names(), **globals()})
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(["__doc__", "__version__", *_SUBMODULES, *_public_names()])


def _public_names() -> dict[str, Any]:
    listed = vars(importlib.import_module("rnncells.public"))
    names = {name: listed[name] for name in listed if not name.startswith("_")}
    return {**names, "__all__": sorted(names)}
