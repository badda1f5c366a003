"""How the gradient of a recurrence is formed: `RNN(cell, gradient=...)`.

The values are the same for all of these classes; only derivatives differ.

================ =============================================== =====================
class            gradient of the parameters                      memory of a row
================ =============================================== =====================
`Bptt`           exact                                           time x n
`TruncatedBptt`  errors go back to the start of a window         time x n
`Truncated1997`  errors go back only through the cell state      time x n
`Rtrl`           exact                                           n x P
`BlockRtrl`      exact                                           n x P + steps x n
`SnAp`           influences that arise within some steps         about P for one step
`Rflo`           influences that stay within a unit              about P
`Uoro`           random; its mean is exact                       n + P
================ =============================================== =====================

n is the number of units in the carry, P that of parameters. The first three go back in
time. The other five are forward methods: they carry the influence of the parameters on
the carry along with it, so they can learn on line (`rnncells.Online`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from chex import ArrayTree
from jax import Array

from rnncells._checks import check_count
from rnncells.cells.contract.carry import Carry
from rnncells.cells.stacked import StackedCell
from rnncells.recurrence.forward.influence import BlockInfluence, Influence, local
from rnncells.recurrence.forward.uoro import RankOneInfluence
from rnncells.recurrence.pytrees import tree_text
from rnncells.recurrence.rows import RowStep, mark_carry

# From the cotangent of a carry to the one that takes its place.
Hook = Callable[[Carry], Carry]


class Gradient:
    """Base of the classes for `gradient` of `RNN`; their `steps` are at least 1."""

    def __post_init__(self) -> None:
        check_count(type(self).__name__, "steps", getattr(self, "steps", 1))

    @property
    def loop_kind(self) -> str:
        """The kind of this method, by which loops differ (see docs/engine.md)."""
        has_hook = getattr(self, "carry_hook", None) is not None
        return "hooked" if has_hook else "backward"

    def cuts(self, sizes: tuple[int, ...], axis: int) -> Array | None:
        """Returns the steps before which the gradient is cut, as booleans, or None.

        They have the shape `sizes`, those of the batch and time axes; time is `axis`.
        """
        return None

    def of_step(self, step: Callable) -> Callable:
        """Returns `(cell, carry, inputs) -> (carry, output)`, with values as `step`."""
        return step


@dataclass(frozen=True)
class Bptt(Gradient):
    """The exact gradient by backpropagation through time: the default of `RNN`.

    A hook acts on the gradient of every carry, as `Tensor.register_hook` of PyTorch:

    >>> import jax, jax.numpy as jnp, rnncells
    >>> def clip(d_carry):
    ...     return jax.tree.map(lambda d: jnp.clip(d, -1, 1), d_carry)
    >>> gradient = rnncells.Bptt(carry_hook=clip)
    >>> rnn = rnncells.RNN(rnncells.LSTMCell(4), gradient=gradient)

    Attributes:
      carry_hook: function of dL/d(carry_t), in the form of the cell's carry, such as
        (dL/dc_t, dL/dh_t) of an LSTM. It returns the gradient to use instead, of the
        same shapes and dtypes. It is called at each step. dL/dh_t contains the gradient
        from the outputs if the cell returns one array both in its carry and as output,
        as our cells do. dL/dc_t excludes the path from c_t to h_t within the same step.
        A layer with a hook runs in the plain loop. Default: None.

    References: Rumelhart, Hinton and Williams, 1986, https://doi.org/10.1038/323533a0;
    Werbos, 1990, https://doi.org/10.1109/5.58337.
    """

    carry_hook: Hook | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.carry_hook is not None and not callable(self.carry_hook):
            raise TypeError(
                f"`carry_hook` of {type(self).__name__} must be a function of the "
                f"gradient of a carry, got {self.carry_hook!r}."
            )

    @property
    def loop_kind(self) -> str:
        is_exact = type(self) is Bptt and self.carry_hook is None
        return "exact" if is_exact else super().loop_kind

    def of_step(self, step: Callable) -> Callable:
        if (hook := self.carry_hook) is None:
            return step

        def hooked(*args: Any) -> tuple[Carry, ArrayTree]:
            before, output = step(*args)
            carry = _with_hook(hook, before)
            pairs = zip(jax.tree.leaves(before), jax.tree.leaves(carry), strict=True)
            # Arrays of the output that are arrays of the carry stay the same arrays.
            same = {id(old): new for old, new in pairs}
            return carry, jax.tree.map(lambda leaf: same.get(id(leaf), leaf), output)

        return hooked


@dataclass(frozen=True)
class TruncatedBptt(Bptt):
    """Backpropagation through time within windows.

    Time is cut into windows of `steps` steps, in the order of processing. An error goes
    back to the start of its window, so 0 to `steps` - 1 steps. With `steps` >= time,
    the gradient is exact. With masks and lengths, a cut lies before the first step of a
    window that updates a row's carry.

    `RNN(cell, gradient=TruncatedBptt(k), memory=Chunk(k))` keeps the residuals of one
    window at a time.

    Attributes:
      steps: number of steps of a window, at least 1.

    Reference: Williams and Peng, 1990, https://doi.org/10.1162/neco.1990.2.4.490, who
    call it BPTT(h; h'), with h = h' = `steps`.
    """

    steps: int

    def cuts(self, sizes: tuple[int, ...], axis: int) -> Array:
        step = jax.lax.broadcasted_iota(jnp.int32, sizes, axis)
        return (step > 0) & (step % self.steps == 0)


@dataclass(frozen=True)
class Truncated1997(Bptt):
    """The truncated gradient of the LSTM of 1997, for any LSTM.

    Errors flow back in time only through the cell state: the gradient of h_{t-1} is 0.
    So the initial h has no gradient, either. Peepholes read the cell state, and errors
    flow back through them, too.

    The cell must have a carry of two arrays, (c, h).

    >>> import rnncells
    >>> rnn = rnncells.RNN(rnncells.LSTMCell(4), gradient=rnncells.Truncated1997())

    Reference: Hochreiter and Schmidhuber, 1997,
    https://doi.org/10.1162/neco.1997.9.8.1735, appendix A.1. `LSTM1997Cell` has this
    gradient by default, also with `gradient=Bptt()`.
    """

    def of_step(self, step: Callable) -> Callable:
        def truncated(cell: nn.Module, carry: Carry, inputs: Any) -> tuple[Carry, Any]:
            is_pair = isinstance(carry, tuple) and len(carry) == 2
            is_pair = is_pair and len(jax.tree.leaves(carry)) == 2
            if isinstance(cell, StackedCell) or not is_pair:
                raise ValueError(
                    "gradient=Truncated1997() of RNN needs an LSTM, a cell whose carry "
                    f"is (c, h), got {type(cell).__name__} with the carry "
                    f"{jax.tree.map(jnp.shape, carry)}."
                )
            c, h = carry
            return step(cell, (c, jax.lax.stop_gradient(h)), inputs)

        return super().of_step(truncated)


class ForwardGradient(Gradient):
    """Base of the methods that carry an influence forward in time.

    The influence of the parameters on the carry of a row is a part of the state, so
    memory does not depend on time: the forward pass saves nothing, and the gradient
    runs the sequence once more from its first step. Lengths, masks and resets are
    respected.

    The gradient is that of the parameters of one layer and of its initial carry. The
    gradient of an input is only that of the outputs of its own step, so parameters
    below the layer get a biased gradient. Use one such layer, the lowest one, or a
    `StackedCell`, which is one cell. The layers `LSTM`, `GRU`, `ElmanRNN`,
    `MultiLayerRNN` and `Stack` raise an error for more layers; your own modules cannot
    be checked.

    The cell must be one that the fast loop supports (see `implementation` of `RNN`),
    compute each row of the batch by itself, and draw no random numbers; other cells
    raise an error. There is no forward mode (`jax.jvp`).
    """

    # Whether each step has an update, so that `rnncells.Online` can learn.
    is_online: ClassVar[bool] = True
    # Random stream that the method draws from.
    rng_stream: ClassVar[str | None] = None
    loop_kind = "forward"

    def of_step(self, step: Callable) -> Callable:
        def marked(*args: Any) -> tuple[Carry, ArrayTree]:
            carry, output = step(*args)
            return mark_carry(carry), output

        return marked

    def method(self, step: RowStep) -> Any:
        raise NotImplementedError

    def block(self) -> int:
        """Returns the number of steps that the method takes at once."""
        return 1


def check_gradient(owner: str, gradient: Any) -> None:
    """Raises TypeError unless the field `gradient` of a layer is a method."""
    if isinstance(gradient, Gradient):
        return
    hint = ""
    if isinstance(gradient, type) and issubclass(gradient, Gradient):
        hint = f" Call the class: {gradient.__name__}(...)."
    raise TypeError(
        f"`gradient` of {owner} must be a method of rnncells.gradients, such as "
        f"Bptt(), got {gradient!r}.{hint}"
    )


@dataclass(frozen=True)
class Rtrl(ForwardGradient):
    """Real-time recurrent learning: the exact gradient, forward in time.

    With n units in the carry and P parameters, the influence J has n x P numbers for
    each row, and a step takes n² x P multiplications. Entries of J that are always zero
    are neither stored nor computed; the jaxpr of the step says which they are. So a
    cell whose units see only themselves in the past (IndRNN, a diagonal linear
    recurrence) keeps one number for each parameter of a unit.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> rnn = rnncells.RNN(rnncells.GRUCell(4), gradient=rnncells.Rtrl())
    >>> x = jnp.ones((2, 5, 3))
    >>> params = rnn.init(jax.random.key(0), x)
    >>> def loss(params):
    ...     return rnn.apply(params, x).sum()
    >>> gradient = jax.jit(jax.grad(loss))(params)

    References: Williams and Zipser, 1989, https://doi.org/10.1162/neco.1989.1.2.270.
    For elementwise recurrences: Irie, Gopalakrishnan and Schmidhuber, 2024,
    https://arxiv.org/abs/2305.19044.
    """

    def method(self, step: RowStep) -> Influence:
        return Influence(step)


@dataclass(frozen=True)
class BlockRtrl(ForwardGradient):
    """The exact gradient by backpropagation in blocks and influence at their borders.

    A step takes about n³ multiplications if blocks have n steps: one backward pass of a
    block for the errors, and n more for the influence. Memory is that of one block and
    of J, n x P. The influence is updated only at the borders of blocks, so
    `rnncells.Online` does not support this method. The gradient of an input is that of
    the outputs of its block.

    Attributes:
      steps: number of steps of a block, at least 1. If a number within 25 % of it
        divides the length of the sequence, that number is used.

    Reference: Schmidhuber, 1992, https://doi.org/10.1162/neco.1992.4.2.243.
    """

    steps: int

    is_online = False

    def method(self, step: RowStep) -> BlockInfluence:
        return BlockInfluence(step)

    def block(self) -> int:
        return self.steps


@dataclass(frozen=True)
class SnAp(ForwardGradient):
    """The sparse n-step approximation of real-time recurrent learning.

    It keeps the entries of J that a parameter reaches in `steps` steps, and drops the
    others. With 1, a weight influences only the unit that it feeds, and J has about P
    numbers. With as many steps as the sequence has, the gradient is exact.

    Attributes:
      steps: number of steps, n in the paper's name SnAp-n, at least 1.

    Reference: Menick et al., 2021, https://arxiv.org/abs/2006.07232.
    """

    steps: int

    def method(self, step: RowStep) -> Influence:
        return Influence(step, steps=self.steps)


@dataclass(frozen=True)
class Rflo(ForwardGradient):
    """Local online learning: influence without the recurrent weights.

    The influence, about P numbers, passes from step to step only through each unit's
    own state, such as a leak or a forget gate. Products of the carry with weights count
    as inputs, except those that only the output reads. For an `LSTMCell`, this is
    `Truncated1997`, computed forward in time. In a `ProjectedLSTMCell`, the projection
    counts as a recurrent product, too.

    The paper also replaces the weights of the readout by fixed random ones in the
    gradient of the units. The readout lies outside of this layer, so it keeps its own
    weights here.

    Reference: Murray, 2019, https://doi.org/10.7554/eLife.43299.
    """

    def method(self, step: RowStep) -> Influence:
        return Influence(step, local(step))


@dataclass(frozen=True)
class Uoro(ForwardGradient):
    """Unbiased online recurrent optimization: an influence of rank one.

    The influence is the product of two random vectors, n + P numbers. The gradient is
    random; its mean is the exact one. A layer draws from the random stream `'uoro'`:
    pass `rngs={"uoro": key}` to `apply`, another key for each gradient.

    >>> import jax, jax.numpy as jnp, rnncells
    >>> rnn = rnncells.RNN(rnncells.GRUCell(4), gradient=rnncells.Uoro())
    >>> x, rngs = jnp.ones((2, 5, 3)), {"uoro": jax.random.key(1)}
    >>> params = rnn.init({"params": jax.random.key(0)}, x)
    >>> def loss(params):
    ...     return rnn.apply(params, x, rngs=rngs).sum()
    >>> gradient = jax.jit(jax.grad(loss))(params)

    Reference: Tallec and Ollivier, 2017, https://arxiv.org/abs/1702.05043.
    """

    rng_stream = "uoro"

    def method(self, step: RowStep) -> RankOneInfluence:
        return RankOneInfluence(step)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_hook(hook: Hook, carry: Carry) -> Carry:
    return carry


def _with_hook_backward(hook: Hook, _: Any, d_carry: Carry) -> tuple[Carry]:
    d_hooked = hook(d_carry)
    expected, got = map(tree_text, (d_carry, d_hooked))
    if expected != got:
        raise ValueError(
            "`carry_hook` must return a gradient in the form of its argument, "
            f"{expected}, got {got}."
        )
    return (d_hooked,)


_with_hook.defvjp(lambda hook, carry: (carry, None), _with_hook_backward)
