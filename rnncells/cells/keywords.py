"""Names of arguments in other libraries, with their names here."""

import dataclasses
from typing import Any

_READ_FROM_INPUTS = "is not needed: the width is read from the inputs"
# What to say about a name that PyTorch, Keras, Flax NNX, Haiku or Equinox uses.
KEYWORDS = {
    **dict.fromkeys(
        ("hidden_size", "hidden_features", "num_units", "output_channels", "units"),
        "is called `features` here",
    ),
    **dict.fromkeys(("input_size", "in_features"), _READ_FROM_INPUTS),
    "batch_first": "is called `time_major` here, with the opposite meaning: "
    "time_major=False, the default, is batch_first=True",
    "bias": "is called `use_bias` here",
    "proj_size": "is called `proj_features` here",
    "activation": "is called `activation_fn` here",
    "recurrent_activation": "is called `gate_fn` here",
    "kernel_initializer": "is called `kernel_init` here",
    "recurrent_initializer": "is called `recurrent_kernel_init` here",
    "bias_initializer": "is called `bias_init` here",
    "go_backwards": "is called `reverse` here, an option of RNN",
    "return_sequences": "is not needed: a layer returns the outputs of all steps. For "
    "the last valid output, take the final carry",
    "return_state": "is called `return_carry` here, an option of RNN",
    "recurrent_dropout": "is an option of a cell here: "
    "RNN(VariationalLSTMCell(features, recurrent_rate=...))",
    "rngs": "is an argument of `init` and `apply` in flax.linen",
}


class ChecksKeywords:
    """Base of modules whose constructors explain names of other libraries.

    It is a base because Python takes a class's signature from its first `__new__` or
    `__init__`, and dataclasses define `__init__` in the class itself.
    """

    def __new__(cls, *args: Any, **fields: Any):
        own = {field.name for field in dataclasses.fields(cls)}
        for name in fields.keys() - own:
            if name in KEYWORDS:
                raise TypeError(f"`{name}` of {cls.__name__} {KEYWORDS[name]}.")
        cls._check_positional(args)
        return super().__new__(cls)

    @classmethod
    def _check_positional(cls, args: tuple[Any, ...]) -> None:
        """Raises TypeError if positional arguments are wrong."""
