"""The layers of rnncells as NNX modules."""

import rnncells
from rnncells.nnx.from_linen import FromLinen


class RNN(FromLinen, linen=rnncells.RNN): ...


class Bidirectional(FromLinen, linen=rnncells.Bidirectional): ...


class Stack(FromLinen, linen=rnncells.Stack): ...


class XLSTMBlock(FromLinen, linen=rnncells.XLSTMBlock): ...


class GriffinBlock(FromLinen, linen=rnncells.GriffinBlock): ...


class MultiLayerRNN(FromLinen, linen=rnncells.MultiLayerRNN): ...


class LSTM(FromLinen, linen=rnncells.LSTM): ...


class GRU(FromLinen, linen=rnncells.GRU): ...


class ElmanRNN(FromLinen, linen=rnncells.ElmanRNN): ...
