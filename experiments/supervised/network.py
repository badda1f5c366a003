"""The network of a config: recurrent layers, and a dense layer for their outputs."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

import rnncells
from experiments.settings.rules import ConfigError, require
from experiments.settings.supervised import Network, Supervised
from experiments.settings.wording import nearest

Array = jax.Array
# The library that runs the layers; cells are looked up in it by name.
LIBRARIES = {"rnncells": rnncells, "flax": nn}
# By the name of the class in lower case: `truncated-1997` is `Truncated1997`.
GRADIENTS = {
    name.lower(): kind
    for name, kind in vars(rnncells.gradients).items()
    if dataclasses.is_dataclass(kind) and issubclass(kind, rnncells.gradients.Gradient)
}
# Rates of the random cells, in training.
ZONEOUT, VARIATIONAL, DROP_CONNECT = 0.1, 0.1, 0.1

# Units of a head of the cells with a matrix memory.
HEAD = 8
# Cells whose outputs depend on the last inputs only.
NOT_RECURRENT = {"CausalConvCell"}


def _of_heads(kind: type[nn.Module], features: int, **fields: Any) -> nn.Module:
    width = HEAD * features
    return rnncells.StackedCell(
        [nn.Dense(width, **fields), kind(width, num_heads=features, **fields)]
    )


def _variational(kind: type[nn.Module], features: int, **fields: Any) -> nn.Module:
    rates = {"input_rate": VARIATIONAL, "recurrent_rate": VARIATIONAL}
    return kind(features, **rates, **fields)


# Cells of rnncells that need more than a width, as functions of the width.
MADE: dict[str, Callable[..., nn.Module]] = {
    # The width is that of the outputs.
    "ProjectedLSTMCell": lambda features, **fields: rnncells.ProjectedLSTMCell(
        2 * features, features, **fields
    ),
    # The width is the number of heads.
    "MLSTMCell": partial(_of_heads, rnncells.MLSTMCell),
    "DeltaNetCell": partial(_of_heads, rnncells.DeltaNetCell),
    "GatedDeltaNetCell": partial(_of_heads, rnncells.GatedDeltaNetCell),
    # The width is that of the inputs, too.
    "RGLRUCell": lambda features, **fields: rnncells.StackedCell(
        [nn.Dense(features, **fields), rnncells.RGLRUCell(features, **fields)]
    ),
    # Six steps of the solver, the default, would take six times as long.
    "LTCCell": partial(rnncells.LTCCell, unfolds=1),
    # The backbone is as wide as the state.
    "CfCCell": lambda features, **fields: rnncells.CfCCell(
        features, backbone_features=features, **fields
    ),
    "DropConnectCell": lambda features, **fields: rnncells.DropConnectCell(
        rnncells.LSTMCell(features, **fields), DROP_CONNECT
    ),
    # Two layers in one loop.
    "StackedCell": lambda features, **fields: rnncells.StackedCell(
        [rnncells.LSTMCell(features, **fields) for _ in range(2)]
    ),
    "VariationalGRUCell": partial(_variational, rnncells.VariationalGRUCell),
    "VariationalLSTMCell": partial(_variational, rnncells.VariationalLSTMCell),
    "ZoneoutCell": lambda features, **fields: rnncells.ZoneoutCell(
        rnncells.LSTMCell(features, **fields), ZONEOUT
    ),
}


def cell_names(library: str = "rnncells", is_conv: bool = False) -> list[str]:
    """Returns the names of the cells that a config can choose.

    Args:
      library: a name in `LIBRARIES`.
      is_conv: whether to return convolutional cells in place of the others.
    """
    module = LIBRARIES[library]
    needed = {"features", "kernel_size"} if is_conv else {"features"}
    found = [] if is_conv or library != "rnncells" else list(MADE)
    for name in dir(module):
        kind = getattr(module, name)
        is_cell = name.endswith("Cell") and dataclasses.is_dataclass(kind)
        if not is_cell or name in NOT_RECURRENT:
            continue
        fields = {field.name: field for field in dataclasses.fields(kind)}
        required = {
            name
            for name, field in fields.items()
            if field.init and field.default is dataclasses.MISSING
        }
        has_kernel = "kernel_size" in fields
        if needed <= fields.keys() and required <= needed and has_kernel == is_conv:
            found.append(name)
    return sorted({*found})


def cell_of(config: Network, dtype: Any = None, **fields: Any) -> nn.Module:
    """Returns a new cell of the class and width of a config.

    Args:
      config: the section `[model]` of a config.
      dtype: type of the computation; None: float32.
      **fields: other fields; with `kernel_size`, the cell must be convolutional.

    Raises:
      ConfigError: the library has no such cell of this name, or the cell has no forget
        gate for `forget_bias`.
    """
    known = cell_names(config.library, "kernel_size" in fields)
    if config.cell not in known:
        raise ConfigError(f"unknown cell `{config.cell}`{nearest(config.cell, known)}")
    kind = getattr(LIBRARIES[config.library], config.cell)
    if config.forget_bias:
        if not hasattr(kind, "bias_init"):
            raise ConfigError(
                f"`model.forget_bias` must be 0 for {config.cell}, which has no forget "
                f"gate with a bias, got {config.forget_bias}."
            )
        fields["bias_init"] = rnncells.initializers.forget_gate(config.forget_bias)
    if config.library == "rnncells" and config.cell in MADE:
        kind = MADE[config.cell]
    return kind(features=config.features, dtype=dtype, **fields)


def gradient_of(config: Network) -> rnncells.gradients.Gradient:
    """Returns the method that forms the gradient of the recurrent layers.

    Raises:
      ConfigError: there is no such method, or its number of steps or of layers is
        wrong.
    """
    name, steps = config.gradient, config.gradient_steps
    kind = GRADIENTS.get(name.replace("-", ""))
    if kind is None:
        raise ConfigError(f"unknown gradient `{name}`{nearest(name, [*GRADIENTS])}")
    require(
        ("steps" in kind.__dataclass_fields__) == bool(steps),
        "`model.gradient_steps` must be at least 1 for a gradient with the field "
        f"`steps`, and 0 for others, got {steps} with {name!r}.",
    )
    goes_back = not issubclass(kind, rnncells.gradients.ForwardGradient)
    require(
        goes_back or config.layers == 1,
        f"`model.layers` must be 1 if `model.gradient` is {name!r}, got "
        f"{config.layers}.",
    )
    return kind(steps=steps) if steps else kind()


def rngs(key: Array) -> dict[str, Array]:
    """Returns the random streams of a training step, for dropout and the gradient."""
    return {"dropout": key, "uoro": jax.random.fold_in(key, 1)}


def recurrent_layers(config: Network, dtype: Any = None) -> list[nn.Module]:
    """Returns the recurrent layers of a config, each followed by dropout."""
    library = LIBRARIES[config.library]
    options = {"gradient": gradient_of(config)} if library is rnncells else {}
    layers: list[nn.Module] = []

    def rnn() -> nn.Module:
        return library.RNN(cell_of(config, dtype), **options)

    for _ in range(config.layers):
        layer = library.Bidirectional(rnn(), rnn()) if config.bidirectional else rnn()
        layers += [layer, nn.Dropout(config.dropout)] if config.dropout else [layer]
    return layers


class SequenceNetwork(nn.Module):
    """Recurrent layers, and a dense layer for their outputs.

    Attributes:
      config: the section `[model]` of a config.
      outputs: number of outputs.
      symbols: number of symbols, if inputs are symbols; None: inputs are numbers.
      pool: `None` for outputs at every step; a function of the states
        `(batch, time, features)` and the lengths `(batch,)` for one output.
      dtype: type of the computation; None: float32.
    """

    config: Network
    outputs: int
    symbols: int | None = None
    pool: Callable[[Array, Array | None], Array] | None = None
    dtype: Any = None

    def setup(self):
        """Makes the layers."""
        config = self.config
        if self.symbols is not None and config.embedding:
            self.embed = nn.Embed(self.symbols, config.embedding, dtype=self.dtype)
        self.stack = rnncells.Stack(recurrent_layers(config, self.dtype))
        # Logits and the loss are float32.
        self.dense = nn.Dense(self.outputs)

    def __call__(
        self,
        inputs: Array,
        lengths: Array | None = None,
        carry: Any = None,
        resets: Array | None = None,
        mask: Array | None = None,
        deterministic: bool = True,
    ) -> tuple[Any, Array]:
        """Returns the final carry, and the outputs.

        Args:
          inputs: `(batch, time, inputs)`, or symbols `(batch, time)`.
          lengths: number of steps of each sequence, `(batch,)`.
          carry: carry before the first step; None: that of new sequences.
          resets: `(batch, time)`, true where a new sequence begins.
          mask: `(batch, time)`, false at steps to skip.
          deterministic: whether dropout is off.
        """
        carry, states = self.stack(
            self._vectors(inputs),
            initial_carry=carry,
            seq_lengths=lengths,
            resets=resets,
            mask=mask,
            return_carry=True,
            deterministic=deterministic,
        )
        if self.pool is not None:
            states = self.pool(states, lengths)
        return carry, self.dense(states).astype(jnp.float32)

    def step(self, carry: Any, inputs: Array) -> tuple[Any, Array]:
        """Returns the carry and the outputs after one step, `(batch, outputs)`."""
        carry, states = self.stack.step(
            carry, self._vectors(inputs), deterministic=True
        )
        return carry, self.dense(states).astype(jnp.float32)

    def _vectors(self, inputs: Array) -> Array:
        """Returns the vectors of symbols; other inputs are returned as they are."""
        if self.symbols is None:
            return inputs
        if self.config.embedding:
            return self.embed(inputs)
        return jax.nn.one_hot(inputs, self.symbols, dtype=self.dtype or jnp.float32)


def initial_carry(network: SequenceNetwork, batch: int, inputs: int) -> Any:
    """Returns the carry of new sequences, for a batch.

    Args:
      network: the network.
      batch: number of sequences.
      inputs: size of the vectors that enter the first layer.
    """
    # Flax's RNN has no `initialize_carry`; cells of one name have the same carry.
    config = dataclasses.replace(network.config, library="rnncells")
    stack = rnncells.Stack(recurrent_layers(config, network.dtype))
    return stack.initialize_carry(jax.random.key(0), (batch, inputs))


def last_step(states: Array, lengths: Array | None) -> Array:
    """Returns the states after the last step of each sequence, `(batch, features)`."""
    if lengths is None:
        return states[:, -1]
    return jax.vmap(lambda rows, n: rows[n - 1])(states, lengths)


def mean_over_time(states: Array, lengths: Array | None) -> Array:
    """Returns the mean state over the steps of each sequence, `(batch, features)`."""
    if lengths is None:
        return states.mean(1)
    is_valid = jnp.arange(states.shape[1]) < lengths[:, None]
    return jnp.mean(states, 1, where=is_valid[:, :, None])


def dtype_of(experiment: Supervised) -> Any:
    """Returns the type of the computation; None: float32."""
    return jnp.bfloat16 if experiment.training.precision == "bfloat16" else None
