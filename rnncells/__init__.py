"""Recurrent cells for Flax, and layers that run them over time.

>>> import jax, jax.numpy as jnp, rnncells
>>> rnn = rnncells.RNN(rnncells.LSTMCell(4))
>>> y, params = rnn.init_with_output(jax.random.key(0), jnp.ones((2, 5, 3)))
>>> y.shape  # (batch, time, features)
(2, 5, 4)

Every name has its own help, for example `help(rnncells.RNN)`.

Cells for one step, called as `carry, output = cell(carry, inputs)`:

  SimpleCell            fully recurrent tanh units, or any activation
  LSTMCell              LSTM with input, forget and output gates
  OptimizedLSTMCell     the same cell under Flax's second name
  GRUCell               GRU, as in Flax and PyTorch, or as in the paper
  MGUCell               minimal gated unit: one gate, where the GRU has two
  ProjectedLSTMCell     LSTM whose output is projected to fewer units
  PeepholeLSTMCell      LSTM whose gates also read the cell state
  CoupledLSTMCell       LSTM with forget gate = 1 - input gate (CIFG)
  LayerNormLSTMCell     LSTM with layer normalization
  LayerNormGRUCell      GRU with layer normalization
  ConvLSTMCell          convolutional LSTM, any number of spatial axes
  ConvGRUCell           convolutional GRU, any number of spatial axes
  LSTM1997Cell          original LSTM of 1997, without forget gates
  LSTM2000Cell          the cell of 1997 with forget gates
  SLSTMCell             LSTM with exponential gates (xLSTM), in heads
  IndRNNCell            each unit sees itself and the inputs only
  SRUCell               gates that see their own unit only, and a highway
  CausalConvCell        causal depthwise convolution over time
  CfCCell               closed-form continuous time; steps of any duration
  LTCCell               liquid time constants: neurons with synapses

Cells that are linear in their carry, which `RNN` runs in parallel:

  MinGRUCell            minimal GRU: gates of the inputs only
  MinLSTMCell           minimal LSTM: gates of the inputs only
  QRNNCell              f-, fo- or ifo-pooling of quasi-recurrent networks
  LRUCell               linear recurrent unit: complex eigenvalues
  RGLRUCell             real-gated linear recurrent unit of Griffin
  MLSTMCell             LSTM with a matrix memory (xLSTM), in heads
  DeltaNetCell          matrix memory that is written by the delta rule
  GatedDeltaNetCell     the same memory with a decay

Wrappers and dropout:

  StackedCell           cells, modules and functions as one cell
  ZoneoutCell           wraps a cell; random units keep their previous state
  DropConnectCell       wraps a cell; random recurrent weights are zero
  VariationalLSTMCell   LSTM with one dropout mask for all steps
  VariationalGRUCell    GRU with one dropout mask for all steps
  VariationalDropout    mixin that adds this dropout to other cells

Layers for whole sequences, with lengths, masks and resets:

  RNN                   runs any cell, also Flax's and your own
  Bidirectional         runs one RNN forward and one backward in time
  LSTM, GRU, ElmanRNN   multi-layer RNNs with the options of PyTorch
  MultiLayerRNN         base class of these three, for any other cell
  Stack                 applies cells, layers and functions in turn
  LSTMStates            states (h, c) of the layer LSTM
  XLSTMBlock            residual block of xLSTM, with an mLSTM or an sLSTM
  GriffinBlock          residual block of Griffin, with an RG-LRU
  SequenceLayer         protocol of layers, for your own in a Stack
  Chunk                 saves memory: `RNN(cell, memory=Chunk(steps))`
  Newton                solves for all steps at once, by Newton's method
  Certificate           says whether Newton's method converged
  feature_shardings     shards features over devices, see docs/scaling.md

Gradient methods, as in `RNN(cell, gradient=SnAp(1))`:

  Bptt                  exact, back in time: the default
  TruncatedBptt         errors stay within a window of time
  Truncated1997         errors flow back only through the cell state
  Rtrl                  exact, forward in time
  BlockRtrl             exact, back in time within blocks
  SnAp                  sparse approximation of Rtrl
  Rflo                  local approximation of Rtrl
  Uoro                  random approximation of Rtrl, of rank one
  Online                learns from data that arrive one step at a time
  OnlineState           what Online carries from step to step
  accumulate            mean loss and gradient over micro-batches or windows
  Accumulated           what accumulate returns

To write your own cell:

  RNNCellBase           base class of all cells; its help has an example
  LinearRNNCellBase     base of cells that are linear in their carry
  MatrixRNNCellBase     base of cells whose state is a matrix
  ElementwiseAffine     product with a diagonal matrix, as for peepholes
  check_cell            function that checks a cell and its speed

Submodules, which need no import of their own:

  gradients             the methods above, and how to write your own
  initializers          biases for long memory, PyTorch's initial values
  packing               several sequences in each row, to save padding
  diagnostics           what a recurrence computes, and how gradients flow
  plots                 pictures of these values; needs matplotlib
  nnx                   all cells and layers as modules of Flax NNX
  interop               weights of PyTorch, Keras, Haiku, Equinox; files
  testing               `check_cell` and its report
  reference             steps of four cells and their derivatives, to read
  legacy                runs code for Flax <= 0.6.11 unchanged
  migrate               rewrites such code: command `rnncells migrate`
  cells, layers         files of the cells and layers above
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
    "migrate",
    "nnx",
    "plots",
    "testing",
)

# rnncells/public.py lists the public names. They are imported when one of them is first
# used (PEP 562), so that `rnncells migrate` runs without JAX and Flax.
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
