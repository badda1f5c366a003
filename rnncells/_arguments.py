"""Explanations of constructor arguments that are of other libraries or classes."""

import dataclasses
import inspect
from typing import Any, ClassVar

# Names in PyTorch, Keras, Flax NNX, Haiku and Equinox, with their names here.
NAMES_HERE = {
    **dict.fromkeys(
        ("hidden_size", "hidden_features", "num_units", "output_channels", "units"),
        "features",
    ),
    **dict.fromkeys(("filters", "out_channels"), "features"),
    "activation": "activation_fn",
    "bias": "use_bias",
    "bias_initializer": "bias_init",
    "go_backwards": "reverse",
    "kernel_initializer": "kernel_init",
    "merge_mode": "merge_fn",
    "proj_size": "proj_features",
    "recurrent_activation": "gate_fn",
    "recurrent_initializer": "recurrent_kernel_init",
    "return_state": "return_carry",
}
# Names that have no counterpart here.
EXPLAINED = {
    **dict.fromkeys(
        ("input_size", "in_features"),
        "is not needed: the width is read from the inputs",
    ),
    "batch_first": "is not an option: time_major=False, the default of the layers, is "
    "batch_first=True",
    "return_sequences": "is not needed: a layer returns the outputs of all steps. For "
    "the last valid output, take the final carry",
    "recurrent_dropout": "is an option of a cell: "
    "RNN(VariationalLSTMCell(features, recurrent_rate=...))",
    "rngs": "is an argument of `init` and `apply` in flax.linen",
}


class ChecksArguments:
    """Base of modules whose constructors explain arguments that they do not have.

    It is a base because Python takes the signature of a class from its first `__new__`
    or `__init__`, and dataclasses define `__init__` in the class itself.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field]]

    def __new__(cls, *args: Any, **fields: Any):
        unknown = fields.keys() - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            # A subclass may have an `__init__` of its own.
            taken = inspect.signature(cls.__init__).parameters
            takes_any = any(p.kind is p.VAR_KEYWORD for p in taken.values())
            explained = [_explanation(cls, name) for name in sorted(unknown - {*taken})]
            if any(explained) and not takes_any:
                raise TypeError(" ".join(filter(None, explained)))
        if len(args) > 1:
            parameters = inspect.signature(cls.__init__).parameters.values()
            kinds = [parameter.kind for parameter in parameters]
            if inspect.Parameter.VAR_POSITIONAL not in kinds:
                most = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) - 1
                cls._check_positional(args, most)
        return super().__new__(cls)

    @classmethod
    def _check_positional(cls, args: tuple[Any, ...], most: int) -> None:
        """Raises TypeError if several positional arguments are wrong.

        Args:
          args: the arguments.
          most: number of positional arguments that the constructor takes.
        """


def _explanation(cls: type, name: str) -> str | None:
    """Returns what to write instead of an argument, or None if nothing is known."""
    start = f"`{name}` of {cls.__name__}"
    if name in EXPLAINED:
        return f"{start} {EXPLAINED[name]}."
    here = NAMES_HERE.get(name, name)
    if here in {field.name for field in dataclasses.fields(cls)}:
        return f"{start} is called `{here}` here."
    # Imported here, because these classes derive from this module's.
    from rnncells import public

    owners = [
        other.__name__
        for other in vars(public).values()
        if here in getattr(other, "__dataclass_fields__", ())
    ]
    called = "" if here == name else f", called `{here}` here"
    return f"{start} is an option of {', '.join(owners)}{called}." if owners else None
