"""Recurrent cells for Flax, and the layers that run them over sequences."""

from rnncells import initializers as initializers
from rnncells import packing as packing
from rnncells import reference as reference
from rnncells.base import RNNCellBase as RNNCellBase
from rnncells.cells.conv import ConvGRUCell as ConvGRUCell
from rnncells.cells.conv import ConvLSTMCell as ConvLSTMCell
from rnncells.cells.coupled import CoupledLSTMCell as CoupledLSTMCell
from rnncells.cells.gru import GRUCell as GRUCell
from rnncells.cells.gru import MGUCell as MGUCell
from rnncells.cells.layer_norm import LayerNormGRUCell as LayerNormGRUCell
from rnncells.cells.layer_norm import LayerNormLSTMCell as LayerNormLSTMCell
from rnncells.cells.lstm import LSTMCell as LSTMCell
from rnncells.cells.lstm import OptimizedLSTMCell as OptimizedLSTMCell
from rnncells.cells.lstm1997 import LSTM1997Cell as LSTM1997Cell
from rnncells.cells.lstm2000 import LSTM2000Cell as LSTM2000Cell
from rnncells.cells.peephole import PeepholeLSTMCell as PeepholeLSTMCell
from rnncells.cells.projected import ProjectedLSTMCell as ProjectedLSTMCell
from rnncells.cells.simple import SimpleCell as SimpleCell
from rnncells.cells.variational import VariationalDropout as VariationalDropout
from rnncells.cells.variational import VariationalGRUCell as VariationalGRUCell
from rnncells.cells.variational import VariationalLSTMCell as VariationalLSTMCell
from rnncells.cells.zoneout import ZoneoutCell as ZoneoutCell
from rnncells.conformance import check_cell as check_cell
from rnncells.gates import Diagonal as Diagonal
from rnncells.layers.bidirectional import Bidirectional as Bidirectional
from rnncells.layers.deep import DeepRNN as DeepRNN
from rnncells.layers.recurrent import GRU as GRU
from rnncells.layers.recurrent import LSTM as LSTM
from rnncells.layers.recurrent import ElmanRNN as ElmanRNN
from rnncells.layers.rnn import RNN as RNN
from rnncells.layers.stack import Stack as Stack
from rnncells.recurrence.chunks import Chunk as Chunk

__version__ = "0.1.0"
