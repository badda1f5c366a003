"""Chooses the loop that runs a layer."""

from collections.abc import Callable

import flax.linen as nn

from rnncells.gradients import ForwardGradient
from rnncells.layers.causal_conv_loop import causal_conv_loop, is_causal_conv
from rnncells.layers.forward_loop import forward_loop
from rnncells.layers.gradient_checks import has_hook
from rnncells.layers.linear_loop import check_not_associative, is_linear, linear_loop
from rnncells.layers.loops import fast_loop, plain_loop
from rnncells.layers.newton_loop import newton_loop
from rnncells.recurrence.newton import Newton


def uses_newton(rnn: nn.Module) -> bool:
    """Says whether a layer solves for its carries by Newton's method."""
    return rnn.implementation == "newton" or isinstance(rnn.implementation, Newton)


def loop_over_time(rnn: nn.Module, axis: int, step: Callable) -> Callable:
    """Returns the loop of a layer, by its `gradient`, its cell and `implementation`.

    Args:
      rnn: the layer, bound.
      axis: position of the time axis.
      step: `(cell, carry, inputs) -> (carry, output)`, see `apply_step`.
    """
    if isinstance(rnn.gradient, ForwardGradient):
        return forward_loop(rnn, axis, step)
    if has_hook(rnn.gradient):
        # The fast loop would drop the side effects of a hook, such as a callback.
        return plain_loop(rnn, axis, step)
    if uses_newton(rnn):
        return newton_loop(rnn, axis, step)
    if is_linear(rnn.cell) and rnn.implementation != "scan":
        return linear_loop(rnn, axis, step)
    if is_causal_conv(rnn.cell) and rnn.implementation != "scan":
        return causal_conv_loop(rnn, axis, step)
    check_not_associative(rnn, f"but {type(rnn.cell).__name__} is no linear cell.")
    return fast_loop(rnn, axis, step)
