"""Several layers of one kind of cell, in one or both directions, as in PyTorch."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import PRNGKey
from flax.typing import Dtype, Initializer
from jax import Array

from rnncells import initializers
from rnncells._checks import check_deterministic, check_rate, check_rng
from rnncells._user_warning import warn
from rnncells.cells.contract import any_cell
from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import Carry, describe, input_structs
from rnncells.gradients import Bptt, Gradient, check_gradient
from rnncells.layers.bidirectional import Bidirectional
from rnncells.layers.contract import checks
from rnncells.layers.contract.sequence_layer import RecurrentLayer
from rnncells.layers.contract.states import (
    States,
    check_states,
    states_tuple,
    to_carry,
    to_states,
)
from rnncells.layers.rnn import RNN, Implementation
from rnncells.loops.table import check_options
from rnncells.recurrence.engine.memory import Memory, Projection
from rnncells.recurrence.pytrees import StructTree, structs


class MultiLayerRNN(RecurrentLayer):
    """Base class of `LSTM`, `GRU` and `ElmanRNN`.

    To use another cell whose carry is h or (c, h), derive a class that defines `cell`:

    >>> import flax.linen as nn, jax, jax.numpy as jnp, rnncells
    >>> class PeepholeLSTM(rnncells.MultiLayerRNN):
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
      projection: see `RNN`. Default: `'auto'`.
      gradient: how the gradient of each layer is formed, see `RNN`. The methods that
        carry it forward in time need num_layers=1. Default: Bptt().
    """

    # The only positional argument: PyTorch's first argument is the width of the inputs.
    features: int
    _: dataclasses.KW_ONLY
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
    memory: Memory = "full"
    implementation: Implementation = "auto"
    projection: Projection = "auto"
    gradient: Gradient = Bptt()

    def __post_init__(self) -> None:
        name = type(self).__name__
        super().__post_init__()
        check_rate(name, "dropout", self.dropout)
        check_gradient(name, self.gradient)
        check_options(self)
        if self.num_layers > 1:
            checks.check_depth(name, self)

    @nn.nowrap
    def cell(self) -> RNNCellBase:
        """Returns the cell of one layer and direction."""
        raise NotImplementedError(
            f"{type(self).__name__} must define `cell`. Use LSTM, GRU or ElmanRNN, or "
            "derive a class from MultiLayerRNN whose method `cell` returns a cell."
        )

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

    @property
    def rng_streams(self) -> dict[str, bool]:
        """Random streams of dropout and of the cells, as cells declare them."""
        streams = {"dropout": False} if self.dropout else {}
        return {**streams, **any_cell.declared_streams(self.cell())}

    def setup(self) -> None:
        """Creates the cells of all layers, and the learned states."""
        self.layers = [self._layer() for _ in range(self.num_layers)]
        self.between = nn.Dropout(self.dropout)
        if self.learn_states:
            self.learned = self._learned()

    @nn.nowrap
    def _layer(self) -> nn.Module:
        rnns = [
            RNN(
                self.cell(),
                padded_outputs="zero",
                memory=self.memory,
                projection=self.projection,
                implementation=self.implementation,
                gradient=self.gradient,
            )
            for _ in range(self.directions)
        ]
        return Bidirectional(rnns[0], rnns[1]) if self.bidirectional else rnns[0]

    @nn.nowrap
    def _learned(self) -> tuple[Array, ...]:
        """Returns the learned states, `(layers * directions, features)` each."""
        name, zeros = type(self).__name__, nn.initializers.zeros
        if any_cell.feature_dims(self._cell()) != 1:
            raise ValueError(
                f"`learn_states` of {name} needs a cell with one feature axis, got "
                f"{type(self._cell()).__name__}."
            )
        row = self._structs(input_structs((1,)))
        return tuple(
            self.param(f"{letter}_0", zeros, struct.shape, self.param_dtype)
            for letter, struct in zip("hc", states_tuple(row), strict=False)
        )

    @nn.nowrap
    def _cell(self) -> nn.Module:
        """Returns the cell of the first layer; all layers have equal cells."""
        first = self.layers[0]
        return first.forward_rnn.cell if self.bidirectional else first.cell

    @nn.nowrap
    def _structs(self, sample: StructTree) -> States:
        """Returns shapes and dtypes of the states for one step of input."""
        init = partial(any_cell.initialize_carry, self._cell(), None)
        count = self.num_layers * self.directions
        carry = jax.eval_shape(init, sample)
        if len(jax.tree.leaves(carry)) not in (1, 2):
            raise ValueError(
                f"`cell` of {type(self).__name__} must return a cell whose carry is h "
                f"or (c, h), got {describe(carry)}. Use `Stack` for other cells."
            )
        return to_states(
            jax.tree.map(lambda x: x.update(shape=(count, *x.shape)), carry)
        )

    def __call__(
        self,
        inputs: Array,
        states: States | None = None,
        *,
        init_key: PRNGKey | None = None,
        seq_lengths: Array | None = None,
        mask: Array | None = None,
        resets: Array | None = None,
        deterministic: bool | None = None,
        time_major: bool | None = None,
        return_all_states: bool = False,
    ) -> Any:
        """Applies all layers to sequences; see `RNN` for lengths, masks and resets.

        Outputs at padded and masked steps are 0, as in PyTorch. Arguments with the name
        of a field override the field.

        Args:
          inputs: `(*batch, time, features_in)` with any number of batch axes.
          states: initial states, `(layers * directions, *batch, features)`: h, or for
            LSTM `LSTMStates(h, c)`, in the form that this call returns. The forward and
            backward states of a layer are adjacent. Dictionaries and named tuples, as
            from a file, are read by their names h and c. A plain tuple is taken as (h,
            c), as in PyTorch; a tuple (c, h) of equal shapes cannot be recognized as
            swapped. Default: the initial carries of the cells (zeros for our cells), or
            the learned states. Resets restart from the default.
          init_key: key for the initial carries of the cells, split into one for each
            layer; default: `jax.random.key(0)`.
          seq_lengths: integers `(*batch,)` in `[0, time]`.
          mask: booleans `(*batch, time)`, false at steps to skip.
          resets: booleans `(*batch, time)`, true at the first step of each sequence.
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
        options = {"time_major": time_major, "return_all_states": return_all_states}
        flags = checks.check_call(self, deterministic, **options)
        if type(self).__call__ is MultiLayerRNN.__call__:  # which returns a tuple
            checks.check_not_in_sequential(self)
        inputs = checks.one_array(type(self).__name__, "(inputs, states)", inputs)
        sizes = checks.check_layout(inputs, any_cell.feature_dims(self._cell()))
        axis = 0 if flags["time_major"] else len(sizes) - 1
        x_t = structs(inputs, drop_axis=axis)
        before = reset_carries = self._carries(states, x_t, init_key)
        if resets is not None and states is not None:
            reset_carries = self._carries(None, x_t, init_key)
        arguments = {
            "seq_lengths": seq_lengths,
            "mask": mask,
            "resets": resets,
            "time_major": flags["time_major"],
            "return_carry": True,
            "return_all_carries": return_all_states,
        }

        def run(k: int, layer: Any, inputs: Array, **deterministic: Any) -> Any:
            carries = {"initial_carry": before[k]}
            if resets is not None:
                carries["reset_carry"] = reset_carries[k]
            return layer(inputs, **arguments, **carries, **deterministic)

        carries, outputs = self._apply_layers(run, inputs, deterministic)
        if not return_all_states:
            return outputs, self._states(carries)
        finals = [self._last(*pair, axis) for pair in zip(carries, before, strict=True)]
        return outputs, self._states(finals), self._states(carries)

    @nn.nowrap
    def _apply_layers(
        self, run: Callable, inputs: Array, deterministic: bool | None
    ) -> tuple[list[Carry], Array]:
        """Applies all layers by `run(number, layer, ...)`, with dropout between."""
        if self.dropout and self.num_layers == 1:
            warn(
                f"`dropout` of {type(self).__name__} is applied between layers, so it "
                "has no effect with `num_layers=1`."
            )
        if deterministic is None:
            deterministic = self.deterministic
        carries, outputs = [], inputs
        for k, layer in enumerate(self.layers):
            if k > 0:
                outputs = self._dropped(outputs, deterministic)
            carry, outputs = run(k, layer, outputs, deterministic=deterministic)
            carries.append(carry)
        return carries, outputs

    @nn.nowrap
    def _run(self, arguments: dict[str, Any]) -> tuple[States, Array]:
        if "reset_carry" in arguments:
            raise ValueError(
                f"`reset_carry` must be None for {type(self).__name__}, which restarts "
                "from its own initial states."
            )
        padded_outputs = arguments.pop("padded_outputs", "zero")
        if padded_outputs != "zero":
            raise ValueError(
                f"`padded_outputs` must be 'zero' for {type(self).__name__}, got "
                f"{padded_outputs!r}: its outputs at padded steps are 0, as in PyTorch."
            )
        arguments["states"] = arguments.pop("initial_carry", None)
        outputs, states = self(**arguments)
        return states, outputs

    def step(
        self,
        states: States | None,
        inputs: Array,
        *,
        mask: Array | None = None,
        resets: Array | None = None,
        deterministic: bool | None = None,
    ) -> tuple[States, Array]:
        """Applies all layers to one step: `states, output = layer.step(states, x_t)`.

        The arguments are those of `RNN.step`; `states` has the form of the call.
        Outputs of masked rows are 0.

        Raises:
          ValueError: the layer is bidirectional, or the states do not fit.
        """
        checks.check_call(self, deterministic)
        name = f"{type(self).__name__}.step"
        inputs = checks.one_array(name, "(states, inputs)", inputs)
        if self.bidirectional:
            raise ValueError(
                f"`step` of {type(self).__name__} needs `bidirectional=False`, got "
                "True: the backward direction starts at the end of the sequence. Call "
                "the layer on the whole sequence."
            )
        x_t = structs(inputs)
        if states is None:
            dims = any_cell.feature_dims(self._cell())
            checks.warn_sequence_input(x_t.shape[:-dims])
        reset_carries = [None] * self.num_layers
        if resets is not None:
            reset_carries = self._carries(None, x_t)
        try:
            before = self._carries(states, x_t)
        except ValueError as error:
            order = "The arguments of `step` are (states, inputs of one time step)."
            raise ValueError(f"{error} {order}") from None

        def run(k: int, layer: Any, inputs: Array, **options: Any) -> Any:
            options |= {"mask": mask, "resets": resets, "reset_carry": reset_carries[k]}
            return layer.step(before[k], inputs, **options)

        carries, output = self._apply_layers(run, inputs, deterministic)
        return self._states(carries), output

    @nn.nowrap
    def _initial_carry(self, key: PRNGKey | None, sample: StructTree) -> States:
        if self.scope is None:  # `setup` makes the layers
            return self.bind({})._initial_carry(key, sample)
        return self._states(self._carries(None, sample, key))

    @nn.nowrap
    def _dropped(self, outputs: Array, deterministic: bool | None) -> Array:
        if self.dropout == 0:
            return outputs
        check_deterministic(type(self).__name__, deterministic, "dropout", self.dropout)
        if not deterministic:
            check_rng(self, "dropout")
        return self.between(outputs, deterministic=deterministic)

    @nn.nowrap
    def _carries(
        self, states: States | None, sample: StructTree, key: PRNGKey | None = None
    ) -> list[Carry]:
        """Returns a carry for each layer, or a pair of carries if bidirectional."""
        if states is None and not self.learn_states:
            keys = [None] * self.num_layers
            if key is not None:
                keys = jax.random.split(key, self.num_layers)
            return [
                layer.initialize_carry(layer_key, sample)
                for layer, layer_key in zip(self.layers, keys, strict=True)
            ]
        expected = states_tuple(self._structs(sample))
        shapes = tuple(struct.shape for struct in expected)
        if states is None:
            ones = (1,) * (len(shapes[0]) - 2)
            parts = tuple(
                jnp.broadcast_to(
                    p.reshape(p.shape[0], *ones, p.shape[1]), struct.shape
                ).astype(struct.dtype)
                for p, struct in zip(self.learned, expected, strict=True)
            )
        else:
            name = type(self).__name__
            parts = check_states(name, states, shapes, expected[0].dtype, sample)
        count = self.num_layers * self.directions
        carries = [to_carry([part[k] for part in parts]) for k in range(count)]
        if self.bidirectional:
            return list(zip(carries[::2], carries[1::2], strict=True))
        return carries

    @nn.nowrap
    def _states(self, carries: list[Carry]) -> States:
        """Converts the carries of all layers to states."""
        if self.bidirectional:
            carries = [carry for pair in carries for carry in pair]
        return to_states(jax.tree.map(lambda *leaves: jnp.stack(leaves), *carries))

    @nn.nowrap
    def _last(self, carries: Carry, initial: Carry, axis: int) -> Carry:
        """Returns the final carry from the carries in the order of the inputs."""

        def pick(index: int, leaf: Array, start: Array) -> Array:
            return start if leaf.shape[axis] == 0 else jnp.take(leaf, index, axis)

        first, last = partial(pick, 0), partial(pick, -1)
        if not self.bidirectional:
            return jax.tree.map(last, carries, initial)
        forward, backward = zip(carries, initial, strict=True)
        return jax.tree.map(last, *forward), jax.tree.map(first, *backward)
