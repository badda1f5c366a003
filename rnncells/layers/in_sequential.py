"""A check that Flax's `Sequential` does not take the results of a layer apart."""

import inspect
import itertools
import sys
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import flax.linen as nn


def check_not_in_sequential(layer: nn.Module) -> None:
    """Raises TypeError if the next layer would get the states of a layer as arguments.

    `nn.Sequential` and `nnx.Sequential` unpack tuples: after `LSTM`, which returns
    (outputs, states), another one would start from these states without an error.
    """
    current: Any = layer
    for caller, is_sequential in _callers():
        if getattr(type(caller), "linen_class", None) is type(layer):
            current = caller
        if not is_sequential:
            continue
        layers = [*getattr(caller, "layers", ())]
        for preceding, following in itertools.pairwise(layers):
            if preceding is current and not _takes_both(following):
                name = getattr(following, "__name__", None) or type(following).__name__
                raise TypeError(
                    f"{type(layer).__name__} returns (outputs, states), and Sequential "
                    f"passes both to the next layer, {name}, as separate arguments. "
                    "Use rnncells.Stack (rnncells.nnx.Stack), which passes on only "
                    "the outputs, or put `lambda outputs, states: outputs` between "
                    "the two layers."
                )
        if not layers or layers[-1] is not current:
            return
        current = caller  # it returns the same, perhaps in another Sequential


def _callers() -> Iterator[tuple[Any, bool]]:
    """Yields the modules whose calls are running, and whether each is a Sequential.

    Only the stack of Python knows them, of flax.linen and of NNX.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__call__" and "self" in frame.f_locals:
            is_flax = frame.f_globals.get("__name__", "").startswith("flax.")
            is_sequential = frame.f_code.co_qualname == "Sequential.__call__"
            yield frame.f_locals["self"], is_flax and is_sequential
        frame = frame.f_back


def _takes_both(function: Any) -> bool:
    """Says whether a function or layer of a user takes two positional arguments.

    Layers of Flax and rnncells mean something else by their second argument.
    """
    kind = type(function)
    is_module = isinstance(function, nn.Module) or hasattr(kind, "linen_class")
    if kind.__module__.partition(".")[0] in ("flax", "rnncells"):
        return False
    try:
        inspect.signature(
            partial(kind.__call__, function) if is_module else function
        ).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # functions without a signature
        return True
    return True
