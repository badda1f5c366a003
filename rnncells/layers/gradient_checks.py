"""Checks of the field `gradient` of layers."""

import flax.linen as nn

from rnncells.gradients import ForwardGradient, Gradient
from rnncells.layers.loops import FAST_LOOP_OPTIONS

_DIRECTIONS = ("forward", "backward")


def has_hook(gradient: Gradient) -> bool:
    """Says whether a method has a hook on every carry."""
    return getattr(gradient, "carry_hook", None) is not None


def check_gradient(rnn: nn.Module) -> None:
    """Raises an error unless `gradient` of a layer fits its other options."""
    name = type(rnn).__name__
    if not isinstance(rnn.gradient, Gradient):
        hint = ""
        if isinstance(rnn.gradient, type) and issubclass(rnn.gradient, Gradient):
            hint = f" Call the class: {rnn.gradient.__name__}(...)."
        raise TypeError(
            f"`gradient` of {name} must be a method of rnncells.gradients, such as "
            f"Bptt(), got {rnn.gradient!r}.{hint}"
        )
    if isinstance(rnn.gradient, ForwardGradient):
        options = FAST_LOOP_OPTIONS | {"implementation": "auto"}
        why = f"gradient={rnn.gradient} of {name} saves nothing for the gradient"
    elif has_hook(rnn.gradient):
        options = dict(FAST_LOOP_OPTIONS)
        if rnn.implementation != "scan":
            options["implementation"] = "auto"
        why = f"`carry_hook` of {name} needs the plain loop, which has no such option"
    else:
        return
    for option, default in options.items():
        if getattr(rnn, option) != default:
            raise ValueError(
                f"{why}, so `{option}` must be {default!r}, got "
                f"{getattr(rnn, option)!r}."
            )


def check_depth(owner: str, layer: nn.Module) -> None:
    """Raises ValueError if the gradient of a layer is carried forward in time.

    Args:
      owner: name of the module that has another recurrent layer below it.
      layer: the layer.
    """
    directions = [getattr(layer, f"{side}_rnn", None) for side in _DIRECTIONS]
    for rnn in filter(None, (layer, *directions)):
        gradient = getattr(rnn, "gradient", None)
        if isinstance(gradient, ForwardGradient):
            raise ValueError(
                f"gradient={gradient} needs {owner} to have one recurrent layer: the "
                "layers below would get a biased gradient. Put all cells into one "
                f"cell, RNN(StackedCell([...]), gradient={gradient}), or use Bptt()."
            )
