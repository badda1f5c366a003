"""Recurrent cells for Flax, and layers that run them over time.

>>> import jax, jax.numpy as jnp, rnncells
>>> rnn = rnncells.RNN(rnncells.LSTMCell(4))
>>> y, params = rnn.init_with_output(jax.random.key(0), jnp.ones((2, 5, 3)))
>>> y.shape  # (batch, time, features)
(2, 5, 4)

Every name has its own help, for example `help(rnncells.RNN)`.

Cells for one step, called as `carry, output = cell(carry, inputs)`:

  SimpleCell            Elman's recurrent cell: an affine map of input and
                        state, and an activation
  LSTMCell              Long short-term memory with a forget gate
  OptimizedLSTMCell     `LSTMCell` under the name that Flax gives to its
                        faster version
  GRUCell               Gated recurrent unit; the reset gate acts after the
                        recurrent product
  MGUCell               Minimal gated unit: a GRU whose reset and update
                        gate are one gate
  ProjectedLSTMCell     LSTM with a recurrent projection (LSTMP)
  PeepholeLSTMCell      LSTM with peepholes: each gate also reads the cell
                        state of its unit
  CoupledLSTMCell       LSTM with a coupled input and forget gate (CIFG)
  LayerNormLSTMCell     LSTM with layer normalization of its products and of
                        its cell state
  LayerNormGRUCell      GRU with layer normalization of its products
  ConvLSTMCell          LSTM with convolutions over any number of spatial
                        axes
  ConvGRUCell           GRU with convolutions over any number of spatial
                        axes
  LSTM1997Cell          The original LSTM: memory cell blocks without forget
                        gates
  LSTM2000Cell          The LSTM of 2000: memory cell blocks with forget
                        gates
  SLSTMCell             LSTM with exponential gates and a normalizer (sLSTM
                        of xLSTM)
  IndRNNCell            Independently recurrent cell: each unit sees itself
                        and the inputs only
  SRUCell               Simple recurrent unit: gates that see their own unit
                        only, and a highway
  CausalConvCell        Causal depthwise convolution over time: a weighted
                        sum of the last inputs
  CfCCell               Closed-form continuous-time cell
  LTCCell               Liquid time-constant cell: neurons with leaks and
                        conductance-based synapses

Cells that are linear in their carry, which `RNN` runs in parallel:

  MinGRUCell            Minimal gated recurrent unit, linear in its carry
  MinLSTMCell           Minimal long short-term memory, linear in its carry
  QRNNCell              Quasi-recurrent network: gates of the inputs, and a
                        pooling, linear in the carry
  LRUCell               Linear recurrent unit: a diagonal matrix of complex
                        eigenvalues
  RGLRUCell             Real-gated linear recurrent unit (RG-LRU), of
                        Griffin
  MLSTMCell             LSTM with a matrix memory and exponential gates
                        (mLSTM of xLSTM)
  DeltaNetCell          A matrix memory that is written by the delta rule
  GatedDeltaNetCell     A matrix memory that decays, and is written by the
                        delta rule

Wrappers and dropout:

  StackedCell           A stack of cells, modules and functions as one cell
  ZoneoutCell           Wraps a cell so that random elements of its carry
                        keep their previous values
  DropConnectCell       Wraps a cell so that random recurrent weights are
                        zero, the same at every step
  VariationalLSTMCell   `LSTMCell` with `VariationalDropout`; it has the
                        parameters of `LSTMCell`
  VariationalGRUCell    `GRUCell` with `VariationalDropout`; it has the
                        parameters of `GRUCell`
  VariationalDropout    Mixin that adds dropout with the same mask at every
                        step to a cell

Layers for whole sequences, with lengths, masks and resets:

  RNN                   Runs a cell over the time axis of its inputs
  Bidirectional         Runs one RNN forward and one backward in time, and
                        merges their outputs
  LSTM                  Multi-layer LSTM over sequences, made of `LSTMCell`
                        or `ProjectedLSTMCell`
  GRU                   Multi-layer GRU over sequences, made of `GRUCell`
  ElmanRNN              Multi-layer Elman RNN over sequences, made of
                        `SimpleCell`
  MultiLayerRNN         Base class of `LSTM`, `GRU` and `ElmanRNN`
  Stack                 Applies cells, layers and functions to sequences,
                        one after the other
  LSTMStates            The states of the layer `LSTM`, in PyTorch's order
  XLSTMBlock            Residual block of the extended LSTM, around an mLSTM
                        or an sLSTM
  GriffinBlock          Residual block of Griffin: a recurrent block, then a
                        gated network
  SequenceLayer         A layer over sequences: one method, `run`, which
                        always returns its carry
  Chunk                 A number of steps that are taken together:
                        `RNN(cell, memory=Chunk(8))`
  Newton                Solves for all steps of a sequence at once:
                        `RNN(cell, implementation=Newton())`
  Certificate           How well Newton's method solved a recurrence
  feature_shardings     Returns shardings of parameters by features over an
                        axis of a mesh

Gradient methods, as in `RNN(cell, gradient=SnAp(1))`:

  Bptt                  The exact gradient by backpropagation through time:
                        the default of `RNN`
  TruncatedBptt         Backpropagation through time within windows
  Truncated1997         The truncated gradient of the LSTM of 1997, for any
                        LSTM
  Rtrl                  Real-time recurrent learning: the exact gradient,
                        forward in time
  BlockRtrl             The exact gradient by backpropagation in blocks and
                        influence at their borders
  SnAp                  The sparse n-step approximation of real-time
                        recurrent learning
  Rflo                  Local online learning: influence without the
                        recurrent weights
  Uoro                  Unbiased online recurrent optimization: an influence
                        of rank one
  Online                Learns from data that arrive one step at a time
  OnlineState           The state of `Online` between two steps
  accumulate            Returns the mean loss over micro-batches and its
                        gradient
  Accumulated           A mean loss and its gradient

To write your own cell:

  RNNCellBase           Base of all cells: `carry, output = cell(carry,
                        inputs)`
  LinearRNNCellBase     Base of the cells whose step is linear in the carry,
                        element by element
  MatrixRNNCellBase     Base of the cells whose state is a matrix, changed
                        by an outer product
  ElementwiseAffine     Multiplies by a diagonal matrix: `kernel * inputs +
                        bias`, element by element
  check_cell            Checks whether a cell is correct, and whether it
                        runs fast

Submodules, which need no import of their own:

  gradients             How the gradient of a recurrence is formed:
                        `RNN(cell, gradient=...)`
  initializers          Initializers in addition to those of JAX
  packing               Sequence packing: several sequences in each row, to
                        save most of the padding
  reference             Closed forms of steps and their derivatives, for
                        reading and for tests

More submodules:

  diagnostics           What a recurrence computes, and how gradients flow
  plots                 Pictures of these values; needs matplotlib
  nnx                   All cells and layers as modules of Flax NNX
  interop               Weights of PyTorch, Keras, Haiku, Equinox; files
  testing               `check_cell` and its report
  legacy                Runs code for Flax <= 0.6.11 unchanged
  cells, layers         Files of the cells and layers above
"""

import importlib
from typing import TYPE_CHECKING, Any

from rnncells import _lazy

__version__ = "0.2.0"
# Submodules for users, in addition to those in rnncells/public.py.
_SUBMODULES = (
    "cells",
    "diagnostics",
    "interop",
    "layers",
    "legacy",
    "nnx",
    "plots",
    "testing",
)

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
