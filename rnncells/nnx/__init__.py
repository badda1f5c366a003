"""Cells and layers as modules of Flax NNX.

>>> import jax.numpy as jnp
>>> from flax import nnx
>>> import rnncells.nnx as rnx
>>> class Tagger(nnx.Module):
...     def __init__(self, rngs):
...         self.lstm = rnx.LSTM(3, 4, num_layers=2, dropout=0.1, rngs=rngs)
...         self.out = nnx.Linear(4, 5, rngs=rngs)
...     def __call__(self, x, lengths):  # (batch, time, 3), (batch,)
...         y, states = self.lstm(x, seq_lengths=lengths)
...         return self.out(y)
>>> model = Tagger(nnx.Rngs(0))
>>> model.eval()  # no dropout
>>> model(jnp.ones((2, 7, 3)), jnp.array([7, 0])).shape
(2, 7, 5)

All cells of rnncells are here, and `RNN`, `Bidirectional`, `Stack`, `LSTM`, `GRU`,
`ElmanRNN`, `MultiLayerRNN`, `XLSTMBlock` and `GriffinBlock`. `FromLinen` describes what
they have in common: their constructors take `in_features` first and `rngs`, and then
the fields of the linen class; calls take the arguments of the linen class.

========================================================= ==============================
to do this                                                use
========================================================= ==============================
use your own linen cell in NNX                            `from_linen(LinenClass)`
move a linen model with its variables to NNX              `convert(module, variables)`
use an NNX cell in layers of `rnncells.nnx`               `RNN(nnx_cell)`
use an NNX cell in linen layers                           `to_linen(nnx_class, ...)`
load weights of `flax.nnx`                                `rnncells.interop.flax_nnx`
check your own NNX cell                                   `check_cell(cell, shape)`
========================================================= ==============================
"""

import importlib

import flax
import jax

try:
    importlib.import_module("flax.nnx")
except (AttributeError, ImportError) as error:
    raise ImportError(
        "`rnncells.nnx` needs a version of flax whose `flax.nnx` can be imported: flax "
        f">= 0.12.10 with jax >= 0.11.1. Found flax {flax.__version__} and jax "
        f"{jax.__version__}. Install a newer flax."
    ) from error

from rnncells.nnx.cells import CausalConvCell as CausalConvCell
from rnncells.nnx.cells import CfCCell as CfCCell
from rnncells.nnx.cells import ConvGRUCell as ConvGRUCell
from rnncells.nnx.cells import ConvLSTMCell as ConvLSTMCell
from rnncells.nnx.cells import CoupledLSTMCell as CoupledLSTMCell
from rnncells.nnx.cells import DeltaNetCell as DeltaNetCell
from rnncells.nnx.cells import DropConnectCell as DropConnectCell
from rnncells.nnx.cells import GatedDeltaNetCell as GatedDeltaNetCell
from rnncells.nnx.cells import GRUCell as GRUCell
from rnncells.nnx.cells import IndRNNCell as IndRNNCell
from rnncells.nnx.cells import LayerNormGRUCell as LayerNormGRUCell
from rnncells.nnx.cells import LayerNormLSTMCell as LayerNormLSTMCell
from rnncells.nnx.cells import LRUCell as LRUCell
from rnncells.nnx.cells import LSTM1997Cell as LSTM1997Cell
from rnncells.nnx.cells import LSTM2000Cell as LSTM2000Cell
from rnncells.nnx.cells import LSTMCell as LSTMCell
from rnncells.nnx.cells import LTCCell as LTCCell
from rnncells.nnx.cells import MGUCell as MGUCell
from rnncells.nnx.cells import MinGRUCell as MinGRUCell
from rnncells.nnx.cells import MinLSTMCell as MinLSTMCell
from rnncells.nnx.cells import MLSTMCell as MLSTMCell
from rnncells.nnx.cells import OptimizedLSTMCell as OptimizedLSTMCell
from rnncells.nnx.cells import PeepholeLSTMCell as PeepholeLSTMCell
from rnncells.nnx.cells import ProjectedLSTMCell as ProjectedLSTMCell
from rnncells.nnx.cells import QRNNCell as QRNNCell
from rnncells.nnx.cells import RGLRUCell as RGLRUCell
from rnncells.nnx.cells import SimpleCell as SimpleCell
from rnncells.nnx.cells import SLSTMCell as SLSTMCell
from rnncells.nnx.cells import SRUCell as SRUCell
from rnncells.nnx.cells import StackedCell as StackedCell
from rnncells.nnx.cells import VariationalGRUCell as VariationalGRUCell
from rnncells.nnx.cells import VariationalLSTMCell as VariationalLSTMCell
from rnncells.nnx.cells import ZoneoutCell as ZoneoutCell
from rnncells.nnx.converting import convert as convert
from rnncells.nnx.from_linen import FromLinen as FromLinen
from rnncells.nnx.from_linen import from_linen as from_linen
from rnncells.nnx.layers import GRU as GRU
from rnncells.nnx.layers import LSTM as LSTM
from rnncells.nnx.layers import RNN as RNN
from rnncells.nnx.layers import Bidirectional as Bidirectional
from rnncells.nnx.layers import ElmanRNN as ElmanRNN
from rnncells.nnx.layers import GriffinBlock as GriffinBlock
from rnncells.nnx.layers import MultiLayerRNN as MultiLayerRNN
from rnncells.nnx.layers import Stack as Stack
from rnncells.nnx.layers import XLSTMBlock as XLSTMBlock
from rnncells.nnx.testing import check_cell as check_cell
from rnncells.nnx.to_linen import to_linen as to_linen
