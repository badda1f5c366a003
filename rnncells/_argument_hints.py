"""Explanations of wrong arguments, and of methods of other libraries."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

# Names of the same argument here, in PyTorch, Keras, Flax, Haiku and Equinox. A class
# with an argument of one name explains the other names.
SYNONYMS = [
    line.split()
    for line in (
        "features hidden_size hidden_features hidden_dim num_units units filters "
        "out_channels output_channels",
        "activation_fn nonlinearity activation",
        "backward_rnn backward_layer",
        "batch_shape batch_dims batch_size",
        "bias_init bias_initializer b_init",
        "dropout rate dropout_rate dropout_prob",
        "gate_fn recurrent_activation",
        "init_key key rng",
        "initial_carry states carry carries initial_state initial_states init_carry "
        "init_state hidden hidden_state hx h0 h_0 state",
        "kernel_init kernel_initializer w_init w_i_init",
        "layers cells cores",
        "learn_initial_carry learn_states",
        "mask segmentation_mask",
        "merge_fn merge_mode",
        "proj_features proj_size",
        "recurrent_kernel_init recurrent_initializer w_h_init",
        "return_all_carries return_all_states",
        "return_carry return_state return_states",
        "reverse go_backwards",
        "seq_lengths lengths seq_length sequence_length sequence_lengths "
        "input_lengths lens",
        "time_major time_first",
        "use_bias bias",
    )
]
# Names that have no counterpart here.
UNSUPPORTED = {
    **dict.fromkeys(
        ("input_size", "in_features", "in_channels", "input_shape"),
        "is not needed: the width is read from the inputs",
    ),
    **dict.fromkeys(
        ("training", "train", "is_training"),
        "is called `deterministic` here, with the opposite meaning: pass "
        "deterministic=False in training, and deterministic=True otherwise",
    ),
    **dict.fromkeys(
        ("forget_bias", "unit_forget_bias"),
        "is a choice of initial values: for a bias of 1, pass "
        "bias_init=rnncells.initializers.forget_gate() to the LSTM or its cell",
    ),
    **dict.fromkeys(
        ("return_carry", "return_state", "return_states"),
        "is not needed: the results always include the final states or carry",
    ),
    "cell_size": "is an argument of the cell: RNN(LSTMCell(features))",
    "data_format": "is not an option: channels are the last axis of the inputs",
    "device": "is not an option: JAX computes where the parameters and inputs are; see "
    "jax.device_put",
    "padding_mask": "is called `mask` here, which is true at valid steps",
    "batch_first": "is not an option: time_major=False, the default of the layers, is "
    "batch_first=True",
    "return_sequences": "is not needed: a layer returns the outputs of all steps. For "
    "the last valid output, take the final carry",
    "recurrent_dropout": "is an option of a cell: "
    "RNN(VariationalLSTMCell(features, recurrent_rate=...))",
    "rngs": "is an argument of `init` and `apply` in flax.linen",
    "stateful": "is not an option, because modules keep no states: pass the final "
    "states or carry of a call to the next call",
}
# Methods that only some classes have, or that modules of other libraries have.
UNSUPPORTED_METHODS = {
    "decode": "is a method of RNN, because each step needs the outputs of all layers. "
    "Make one cell of the layers: RNN(StackedCell([LSTMCell(features), nn.Dense(n)]))",
    **dict.fromkeys(
        ("state_dict", "parameters", "named_parameters", "get_weights", "weights"),
        "does not exist, because modules of flax.linen keep no parameters: "
        "params = layer.init(key, inputs) returns them",
    ),
    **dict.fromkeys(
        ("load_state_dict", "set_weights"),
        "does not exist, because modules of flax.linen keep no parameters: "
        "`rnncells.interop` makes them of another library's weights, for `apply`",
    ),
    **dict.fromkeys(
        ("forward", "predict"), "does not exist: call layer.apply(params, inputs)"
    ),
    **dict.fromkeys(
        ("eval", "train"),
        "does not exist: pass deterministic=True or deterministic=False to the call",
    ),
    **dict.fromkeys(
        ("to", "cuda", "cpu"),
        "does not exist: JAX computes where the parameters and inputs are; see "
        "jax.device_put",
    ),
    **dict.fromkeys(
        ("reset_states", "reset_state", "flatten_parameters", "build"),
        "is not needed: modules of flax.linen keep neither states nor parameters",
    ),
    **dict.fromkeys(
        ("initial_state", "zero_state", "get_initial_state", "init_hidden"),
        "does not exist: the first carry is made by each call, or by "
        "cell.initialize_carry(key, sample_input)",
    ),
}


def wrong_arguments(
    cls: type,
    method: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: TypeError,
) -> TypeError:
    """Returns an error that explains arguments which a method does not take.

    If arguments are missing, it says what the `error` of Python says.
    """
    is_constructor = method == "__init__"
    is_call = is_constructor or method == "__call__"
    owner = cls.__name__ if is_call else f"{cls.__name__}.{method}"
    _, *parameters = signature.parameters.values()
    accepted = [p.name for p in parameters]
    fields = getattr(cls, "__dataclass_fields__", {})
    messages = []
    for name in sorted(kwargs.keys() - signature.parameters.keys()):
        explained = explanation(owner, name, accepted)
        if explained is None and name in fields and not is_constructor:
            part = "call" if is_call else f"method `{method}`"
            explained = f"`{name}` is an argument of {cls.__name__}, not of its {part}."
        choices = ", ".join(accepted)
        default = f"`{name}` is not an argument of {owner}, which takes {choices}."
        messages.append(explained or default)
    by_position = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(by_position):
        by_name = ", ".join(name for name in accepted if name not in by_position)
        messages.append(
            f"{owner} takes {', '.join(by_position)} by position, got {len(args)} "
            f"arguments. By name: {by_name or 'none'}."
        )
        if is_constructor and "features" in by_position:
            messages.append("The width of the inputs is read from them.")
    return TypeError(" ".join(messages) or f"{owner}: {error}.")


def explanation(owner: str, name: str, accepted: Iterable[str]) -> str | None:
    """Returns the replacement of an unknown argument, or None if there is none."""
    names = [known for known in accepted if known in _synonyms(name)]
    if names:
        return f"`{name}` of {owner} is called `{names[0]}` here."
    if name in UNSUPPORTED:
        return f"`{name}` of {owner} {UNSUPPORTED[name]}."
    return None


def missing_attribute(cls: Any, name: str) -> str | None:
    """Returns why modules of a class have no such attribute, or None if unknown."""
    fields = cls.__dataclass_fields__
    if name in UNSUPPORTED_METHODS:
        return f"`{name}` of {cls.__name__} {UNSUPPORTED_METHODS[name]}."
    if any(synonym in fields for synonym in _synonyms(name)):
        return explanation(cls.__name__, name, fields)
    return None


def _synonyms(name: str) -> list[str]:
    return next((group for group in SYNONYMS if name in group), [name])
