"""Several layers of one kind of cell, in one or both directions, as in PyTorch."""

import dataclasses
import warnings
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer

from rnncells import initializers
from rnncells.cells.base import RNNCellBase
from rnncells.cells.carry import Carry, Sample, carry_dtype, sample_structs
from rnncells.cells.checks import check_count, check_features, check_rate
from rnncells.layers.bidirectional import Bidirectional
from rnncells.layers.checks import (
    check_bools,
    check_layout,
    check_states,
    resolve_flags,
)
from rnncells.layers.rnn import RNN
from rnncells.recurrence.chunks import Chunk

# Arrays `(layers * directions, *batch, features)`: h, or (h, c).
States = chex.Array | tuple[chex.Array, chex.Array]


class MultiLayerRNN(nn.Module, kw_only=True):
    """Base class of `LSTM`, `GRU` and `ElmanRNN`.

    To use another cell whose carry is h or (c, h), derive a class that defines `cell`
    and `widths`:

    >>> import flax.linen as nn, jax, jax.numpy as jnp, rnncells
    >>> class PeepholeLSTM(rnncells.MultiLayerRNN):
    ...     @property
    ...     def widths(self):
    ...         return self.features, self.features
    ...
    ...     @nn.nowrap
    ...     def cell(self):
    ...         return rnncells.PeepholeLSTMCell(self.features, dtype=self.dtype)
    >>> layer = PeepholeLSTM(4, num_layers=3, bidirectional=True)
    >>> x = jnp.ones((2, 5, 3))  # (batch, time, features)
    >>> (y, (h_n, c_n)), params = layer.init_with_output(jax.random.key(0), x)
    >>> y.shape, h_n.shape
    ((2, 5, 8), (6, 2, 4))

    Attributes:
      features: number of units in each layer and direction, PyTorch's `hidden_size`.
      num_layers: number of layers; each takes the outputs of the previous one.
        Default: 1.
      bidirectional: runs each layer in both directions and concatenates their outputs.
        Default: False.
      dropout: dropout rate of the outputs of each layer except the last, in [0, 1).
        Needs the random stream `dropout`. Default: 0.
      use_bias: whether the cells have biases. Default: True.
      time_major: inputs and outputs are `(time, *batch, features)`, as in PyTorch with
        `batch_first=False`. Default: False.
      learn_states: makes the initial states parameters (`h_0`, `c_0`: `(layers *
        directions, features)`, initially zeros) instead of zeros. Resets use them too.
        Default: False.
      deterministic: disables dropout. Required here or in the call if `dropout` is not
        0. Default: None.
      kernel_init: initializer of the input weights. Default: LeCun normal.
      recurrent_kernel_init: initializer of the recurrent weights. Default: orthogonal.
      bias_init: initializer of the biases. Default: zeros.
      dtype: dtype of the computation; None promotes inputs and parameters.
        Default: None.
      param_dtype: dtype of the parameters and of the states. Default: float32.
      memory: residuals that are kept for the gradient, see `RNN`. Default: `'full'`.
      implementation: see `RNN`. Default: `'auto'`.
    """

    # The only positional argument: PyTorch's first argument is the width of the inputs.
    features: int = dataclasses.field(kw_only=False)
    num_layers: int = 1
    bidirectional: bool = False
    dropout: float = 0.0
    use_bias: bool = True
    time_major: bool = False
    learn_states: bool = False
    deterministic: bool | None = None
    kernel_init: Initializer = nn.initializers.lecun_normal()
    recurrent_kernel_init: Initializer = initializers.orthogonal()
    bias_init: Initializer = nn.initializers.zeros_init()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    memory: str | Chunk = "full"
    implementation: str = "auto"

    def __post_init__(self):
        name = type(self).__name__
        if self.features is None:
            raise TypeError(f"`features` of {name} must be an int, got None.")
        check_features(name, self.features)
        check_count(name, "num_layers", self.num_layers)
        check_rate(name, "dropout", self.dropout)
        if self.dropout and self.num_layers == 1:
            warnings.warn(
                f"`dropout` of {name} is applied between layers, so it has no effect "
                "with `num_layers=1`.",
                stacklevel=3,
            )
        flags = ("bidirectional", "use_bias", "time_major", "learn_states")
        check_bools(name, **{flag: getattr(self, flag) for flag in flags})
        if self.deterministic is not None:
            check_bools(name, deterministic=self.deterministic)
        super().__post_init__()

    @nn.nowrap
    def cell(self) -> RNNCellBase:
        """Returns the cell of one layer and direction."""
        raise NotImplementedError(f"{type(self).__name__} must define `cell`.")

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the states h, or h and c."""
        return (self.features,)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that `LSTMCell`, `GRUCell` and `SimpleCell` have in common."""
        names = ("kernel_init", "recurrent_kernel_init", "bias_init")
        names += ("dtype", "param_dtype", "use_bias")
        return {name: getattr(self, name) for name in names}

    @property
    def directions(self) -> int:
        """1, or 2 if each layer runs in both directions."""
        return 2 if self.bidirectional else 1

    def setup(self):
        self.layers = [self._layer() for _ in range(self.num_layers)]
        self.between = nn.Dropout(self.dropout)
        if self.learn_states:
            count, zeros = self.num_layers * self.directions, nn.initializers.zeros
            self.learned = tuple(
                self.param(f"{name}_0", zeros, (count, width), self.param_dtype)
                for name, width in zip("hc", self.widths, strict=False)
            )

    @nn.nowrap
    def _layer(self) -> nn.Module:
        rnns = [
            RNN(
                self.cell(),
                padded_outputs="zero",
                memory=self.memory,
                implementation=self.implementation,
            )
            for _ in range(self.directions)
        ]
        return Bidirectional(*rnns) if self.bidirectional else rnns[0]

    def __call__(
        self,
        inputs: jax.Array,
        states: States | None = None,
        *,
        seq_lengths: jax.Array | None = None,
        mask: jax.Array | None = None,
        resets: jax.Array | None = None,
        deterministic: bool | None = None,
        time_major: bool | None = None,
        return_all_states: bool = False,
    ) -> Any:
        """Applies all layers to sequences.

        Args:
          inputs: `(*batch, time, features_in)` with any number of batch axes.
          states: initial states, `(layers * directions, *batch, features)`: h, or for
            LSTM the pair (h, c), in the form that this call returns. The forward and
            backward states of a layer are adjacent. Default: zeros, or the learned
            states.
          seq_lengths: integers `(*batch,)` in `[0, time]`. Outputs of padding are 0.
          mask: booleans `(*batch, time)`, false at steps to skip. Outputs of skipped
            steps are 0.
          resets: booleans `(*batch, time)`, true at the first step of each new
            sequence. All layers restart there from zeros or from the learned states.
          deterministic: overrides the field.
          time_major: overrides the field.
          return_all_states: also returns the states after every step.

        Returns:
          `(outputs, states)`: the outputs of the last layer, `(*batch, time, directions
          * features)`, and the final states of all layers. With `return_all_states`,
          `(outputs, states, all_states)`: `all_states` are the states after every step,
          in the order of the inputs, `(layers * directions, *batch, time, features)`,
          or `(layers * directions, time, *batch, features)` with `time_major`.

        Raises:
          ValueError: inputs, states or lengths do not fit; `dropout` is set, but not
            `deterministic`.
          TypeError: the states have another dtype; lengths are not integers.
        """
        flags = resolve_flags(
            self, time_major=time_major, return_all_states=return_all_states
        )
        inputs = jnp.asarray(inputs)
        sizes = check_layout(inputs, 1)
        axis = 0 if flags["time_major"] else len(sizes) - 1
        batch = sizes[:axis] + sizes[axis + 1 :]
        carries = self._carries(states, batch, inputs)
        arguments = {
            "seq_lengths": seq_lengths,
            "mask": mask,
            "resets": resets,
            "time_major": flags["time_major"],
            "return_carry": True,
        }
        has_resets = resets is not None
        reset_carries = self._carries(None, batch, inputs) if has_resets else None
        outputs, finals, everywhere = inputs, [], []
        for k, layer in enumerate(self.layers):
            if k > 0:
                outputs = self._dropped(outputs, deterministic)
            arguments["initial_carry"] = carries[k]
            if has_resets:
                arguments["reset_carry"] = reset_carries[k]
            carry, outputs = layer(
                outputs, **arguments, return_all_carries=return_all_states
            )
            if return_all_states:
                everywhere.append(carry)
                carry = self._last(carry, carries[k], axis)
            finals.append(carry)
        if return_all_states:
            return outputs, self._states(finals), self._states(everywhere)
        return outputs, self._states(finals)

    def step(
        self,
        states: States | None,
        inputs: jax.Array,
        *,
        deterministic: bool | None = None,
    ) -> tuple[States, jax.Array]:
        """Applies all layers to one step: `states, output = layer.step(states, x_t)`.

        It takes the same parameters and returns the same values as the call on whole
        sequences.

        Args:
          states: states in the form of the call; None before the first step.
          inputs: `(*batch, features_in)`.
          deterministic: overrides the field.

        Raises:
          ValueError: the layer is bidirectional, or the states do not fit.
        """
        if self.bidirectional:
            raise ValueError(
                f"`step` of {type(self).__name__} needs `bidirectional=False`, got "
                "True: the backward direction starts at the end of the sequence. Call "
                "the layer on the whole sequence."
            )
        output = jnp.asarray(inputs)
        carries = []
        for k, carry in enumerate(self._carries(states, output.shape[:-1], output)):
            if k > 0:
                output = self._dropped(output, deterministic)
            carry, output = self.layers[k].step(carry, output)
            carries.append(carry)
        return self._states(carries), output

    def initialize_carry(
        self, key: chex.PRNGKey | None = None, sample_input: Sample | None = None
    ) -> States:
        """Returns the initial states: zeros, or the learned states.

        With `learn_states`, call `layer.apply(params, None, x_t,
        method="initialize_carry")`.

        Args:
          key: not used; every `initialize_carry` takes a key.
          sample_input: one time step's input, `(*batch, features_in)`: an array, a
            `jax.ShapeDtypeStruct`, or a shape.

        Raises:
          ValueError: the layer has `learn_states`, but is called without parameters.
        """
        if self.learn_states and self.scope is None:
            raise ValueError(
                f"`initialize_carry` of {type(self).__name__} with `learn_states` "
                "needs parameters. Call layer.apply(params, None, x_t, "
                "method='initialize_carry')."
            )
        sample = sample_structs(sample_input)
        return self._states(self._carries(None, sample.shape[:-1], sample))

    def _dropped(self, outputs: jax.Array, deterministic: bool | None) -> jax.Array:
        if self.dropout == 0:
            return outputs
        if deterministic is None:
            deterministic = self.deterministic
        if deterministic is None:
            raise ValueError(
                f"`deterministic` of {type(self).__name__} must be True or False with "
                f"dropout={self.dropout}, got None. Set the field, or pass it to the "
                "call."
            )
        check_bools(type(self).__name__, deterministic=deterministic)
        return self.between(outputs, deterministic=deterministic)

    def _carries(
        self, states: States | None, batch: tuple[int, ...], inputs: jax.Array
    ) -> list[Carry]:
        """Returns a carry for each layer, or a pair of carries if bidirectional."""
        count, name = self.num_layers * self.directions, type(self).__name__
        dtype = carry_dtype(self.param_dtype, inputs)
        shapes = tuple((count, *batch, width) for width in self.widths)
        if states is not None:
            parts = check_states(name, states, shapes, dtype)
        elif self.learn_states:
            ones = (1,) * len(batch)
            parts = tuple(
                jnp.broadcast_to(p.reshape(count, *ones, -1), shape).astype(dtype)
                for p, shape in zip(self.learned, shapes, strict=True)
            )
        else:
            parts = tuple(jnp.zeros(shape, dtype) for shape in shapes)
        carries = [_carry([part[k] for part in parts]) for k in range(count)]
        if self.bidirectional:
            return list(zip(carries[::2], carries[1::2], strict=True))
        return carries

    def _states(self, carries: list[Carry]) -> States:
        """Converts the carries of all layers to states."""
        if self.bidirectional:
            carries = [carry for pair in carries for carry in pair]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *carries)
        return stacked[::-1] if isinstance(stacked, tuple) else stacked

    def _last(self, carries: Carry, initial: Carry, axis: int) -> Carry:
        """Returns the final carry from the carries in the order of the inputs."""

        def last(index):
            def pick(leaf, start):
                is_empty = leaf.shape[axis] == 0
                return start if is_empty else jnp.take(leaf, index, axis)

            return pick

        if not self.bidirectional:
            return jax.tree.map(last(-1), carries, initial)
        forward, backward = zip(carries, initial, strict=True)
        return jax.tree.map(last(-1), *forward), jax.tree.map(last(0), *backward)


def _carry(states: list[jax.Array]) -> Carry:
    """Converts the states h or (h, c) to a cell's carry, h or (c, h)."""
    return states[0] if len(states) == 1 else tuple(states[::-1])
