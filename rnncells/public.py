"""The public names: one line imports `X`, and users write `rnncells.X`.

The comments are the headings under which the help of `rnncells` lists the names, and
`python docs/generate.py` writes that help and other lists.
"""

# ruff: noqa: I001

# Cells for one step, called as `carry, output = cell(carry, inputs)`:
from rnncells.cells.simple import SimpleCell as SimpleCell
from rnncells.cells.lstm import LSTMCell as LSTMCell
from rnncells.cells.lstm import OptimizedLSTMCell as OptimizedLSTMCell
from rnncells.cells.gru import GRUCell as GRUCell
from rnncells.cells.gru import MGUCell as MGUCell
from rnncells.cells.projected import ProjectedLSTMCell as ProjectedLSTMCell
from rnncells.cells.peephole import PeepholeLSTMCell as PeepholeLSTMCell
from rnncells.cells.coupled import CoupledLSTMCell as CoupledLSTMCell
from rnncells.cells.layer_norm import LayerNormLSTMCell as LayerNormLSTMCell
from rnncells.cells.layer_norm import LayerNormGRUCell as LayerNormGRUCell
from rnncells.cells.conv import ConvLSTMCell as ConvLSTMCell
from rnncells.cells.conv import ConvGRUCell as ConvGRUCell
from rnncells.cells.lstm1997 import LSTM1997Cell as LSTM1997Cell
from rnncells.cells.lstm2000 import LSTM2000Cell as LSTM2000Cell
from rnncells.cells.slstm import SLSTMCell as SLSTMCell
from rnncells.cells.ind_rnn import IndRNNCell as IndRNNCell
from rnncells.cells.sru import SRUCell as SRUCell
from rnncells.cells.causal_conv import CausalConvCell as CausalConvCell
from rnncells.cells.liquid import CfCCell as CfCCell
from rnncells.cells.liquid import LTCCell as LTCCell

# Cells that are linear in their carry, which `RNN` runs in parallel:
from rnncells.cells.min_gru import MinGRUCell as MinGRUCell
from rnncells.cells.min_gru import MinLSTMCell as MinLSTMCell
from rnncells.cells.qrnn import QRNNCell as QRNNCell
from rnncells.cells.lru import LRUCell as LRUCell
from rnncells.cells.lru import RGLRUCell as RGLRUCell
from rnncells.cells.mlstm import MLSTMCell as MLSTMCell
from rnncells.cells.delta_net import DeltaNetCell as DeltaNetCell
from rnncells.cells.delta_net import GatedDeltaNetCell as GatedDeltaNetCell

# Wrappers and dropout:
from rnncells.cells.stacked import StackedCell as StackedCell
from rnncells.cells.zoneout import ZoneoutCell as ZoneoutCell
from rnncells.cells.drop_connect import DropConnectCell as DropConnectCell
from rnncells.cells.variational import VariationalLSTMCell as VariationalLSTMCell
from rnncells.cells.variational import VariationalGRUCell as VariationalGRUCell
from rnncells.cells.variational import VariationalDropout as VariationalDropout

# Layers for whole sequences, with lengths, masks and resets:
from rnncells.layers.rnn import RNN as RNN
from rnncells.layers.bidirectional import Bidirectional as Bidirectional
from rnncells.layers.torch_style import LSTM as LSTM
from rnncells.layers.torch_style import GRU as GRU
from rnncells.layers.torch_style import ElmanRNN as ElmanRNN
from rnncells.layers.multi_layer import MultiLayerRNN as MultiLayerRNN
from rnncells.layers.stack import Stack as Stack
from rnncells.layers.contract.states import LSTMStates as LSTMStates
from rnncells.layers.xlstm_block import XLSTMBlock as XLSTMBlock
from rnncells.layers.griffin_block import GriffinBlock as GriffinBlock
from rnncells.layers.contract.sequence_layer import SequenceLayer as SequenceLayer
from rnncells.recurrence.chunks import Chunk as Chunk
from rnncells.recurrence.newton import Newton as Newton
from rnncells.recurrence.newton import Certificate as Certificate
from rnncells._sharding import feature_shardings as feature_shardings

# Gradient methods, as in `RNN(cell, gradient=SnAp(1))`:
from rnncells.gradients import Bptt as Bptt
from rnncells.gradients import TruncatedBptt as TruncatedBptt
from rnncells.gradients import Truncated1997 as Truncated1997
from rnncells.gradients import Rtrl as Rtrl
from rnncells.gradients import BlockRtrl as BlockRtrl
from rnncells.gradients import SnAp as SnAp
from rnncells.gradients import Rflo as Rflo
from rnncells.gradients import Uoro as Uoro
from rnncells._online import Online as Online
from rnncells._online import OnlineState as OnlineState
from rnncells._accumulation import accumulate as accumulate
from rnncells._accumulation import Accumulated as Accumulated

# To write your own cell:
from rnncells.cells.contract.base import RNNCellBase as RNNCellBase
from rnncells.cells.contract.linear import LinearRNNCellBase as LinearRNNCellBase
from rnncells.cells.contract.matrix import MatrixRNNCellBase as MatrixRNNCellBase
from rnncells.cells.contract.parameters import ElementwiseAffine as ElementwiseAffine
from rnncells.testing import check_cell as check_cell

# Submodules, which need no import of their own:
from rnncells import gradients as gradients
from rnncells import initializers as initializers
from rnncells import packing as packing
from rnncells import reference as reference
