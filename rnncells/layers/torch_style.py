"""Multi-layer recurrent layers, as in PyTorch: `LSTM`, `GRU` and `ElmanRNN`."""

from dataclasses import KW_ONLY
from typing import Literal

import flax.linen as nn

from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.checks import check_projection
from rnncells.cells.gru import GRUCell
from rnncells.cells.lstm import LSTMCell
from rnncells.cells.projected import ProjectedLSTMCell
from rnncells.cells.simple import SimpleCell
from rnncells.layers.multi_layer import MultiLayerRNN

NONLINEARITIES = {"tanh": nn.tanh, "relu": nn.relu}


class LSTM(MultiLayerRNN):
    """Multi-layer LSTM over sequences, made of `LSTMCell` or `ProjectedLSTMCell`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> layer = rnncells.LSTM(features=6, num_layers=2, bidirectional=True)
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> (y, (h_n, c_n)), params = layer.init_with_output(jax.random.key(0), x)
    >>> y.shape, h_n.shape, c_n.shape
    ((2, 5, 12), (4, 2, 6), (4, 2, 6))

    `return_all_states` also returns the states of all layers after every step,
    `(layers * directions, batch, time, features)`:

    >>> y, (h_n, c_n), (h_all, c_all) = layer.apply(params, x, return_all_states=True)
    >>> h_all.shape
    (4, 2, 5, 6)

    Attributes, in addition to those of `rnncells.MultiLayerRNN`:
      proj_features: width of the projected h (PyTorch's `proj_size`), less than
        `features`; None: no projection. Default: None.

    Source: `torch.nn.LSTM`, with the same values. Differences: PyTorch has two biases,
    which add up to the one here, and other initial values
    (`rnncells.initializers.pytorch` provides them).
    """

    _: KW_ONLY
    proj_features: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_projection(type(self).__name__, self.proj_features, self.features)

    @nn.nowrap
    def cell(self) -> RNNCellBase:
        if self.proj_features is None:
            return LSTMCell(self.features, **self.options)
        return ProjectedLSTMCell(
            self.features,
            self.proj_features,
            projection_init=self.kernel_init,
            **self.options,
        )


class GRU(MultiLayerRNN):
    """Multi-layer GRU over sequences, made of `GRUCell`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> layer = rnncells.GRU(features=4, num_layers=2)
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> (y, h_n), params = layer.init_with_output(jax.random.key(0), x)
    >>> y.shape, h_n.shape
    ((2, 5, 4), (2, 2, 4))

    Attributes, in addition to those of `rnncells.MultiLayerRNN`:
      reset_after: applies the reset gate after the recurrent product, as in PyTorch.
        Default: True.

    Source: `torch.nn.GRU`, with the same values.
    """

    _: KW_ONLY
    reset_after: bool = True

    @nn.nowrap
    def cell(self) -> RNNCellBase:
        return GRUCell(self.features, reset_after=self.reset_after, **self.options)


class ElmanRNN(MultiLayerRNN):
    """Multi-layer Elman RNN over sequences, made of `SimpleCell`.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> layer = rnncells.ElmanRNN(features=4, nonlinearity="relu")
    >>> x = jnp.ones((5, 3))  # (time, features): no batch
    >>> (y, h_n), params = layer.init_with_output(jax.random.key(0), x)
    >>> y.shape, h_n.shape
    ((5, 4), (1, 4))

    Attributes, in addition to those of `rnncells.MultiLayerRNN`:
      nonlinearity: `'tanh'` or `'relu'`. Default: `'tanh'`.

    Source: `torch.nn.RNN`, with the same values.
    """

    _: KW_ONLY
    nonlinearity: Literal["tanh", "relu"] = "tanh"

    @nn.nowrap
    def cell(self) -> RNNCellBase:
        activation_fn = NONLINEARITIES[self.nonlinearity]
        return SimpleCell(self.features, activation_fn=activation_fn, **self.options)
