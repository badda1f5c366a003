"""The networks of the paper: one recurrent layer and logistic output units."""

from dataclasses import fields

import flax.linen as nn
import jax

import rnncells
from experiments.config import Model


class Network(nn.Module):
    """A recurrent layer that is read out at the end of the sequence.

    Attributes:
      cell: the recurrent cell.
      outputs: number of output units.
      weight_range: output weights start uniform in `[-weight_range, weight_range)`.
      output_bias: whether output units have biases.
    """

    cell: rnncells.RNNCellBase
    outputs: int
    weight_range: float
    output_bias: bool

    def setup(self):
        weights = rnncells.initializers.uniform(self.weight_range)
        self.hidden = rnncells.RNN(self.cell)
        self.output = nn.Dense(
            self.outputs,
            use_bias=self.output_bias,
            kernel_init=weights,
            bias_init=weights,
        )

    def __call__(self, inputs: jax.Array, length: jax.Array) -> jax.Array:
        """Returns the output activations in (0, 1) at the end: `(outputs,)`.

        Args:
          inputs: `(time, features)`, padded.
          length: number of steps that are not padding, at least 1.
        """
        # Nothing later reaches this step, so padding needs no mask.
        y = self.hidden(inputs)[length - 1]
        return nn.sigmoid(self.output(y))


def network(config: Model, outputs: int) -> Network:
    """Returns the network of a config."""
    cell = getattr(rnncells, config.cell)
    # What both name is the cell's: a config's option has the name of the field.
    shared = {f.name for f in fields(cell)} & {f.name for f in fields(config)}
    options = {name: getattr(config, name) for name in shared}
    return Network(cell(**options), outputs, config.weight_range, config.output_bias)
