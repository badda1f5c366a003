"""The sequences of all tasks: inputs, targets and the criterion of a right answer."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Sequence(NamedTuple):
    """One sequence, or many of them with additional axes.

    Attributes:
      inputs: `(time, inputs)`, or indices of symbols `(time,)`. Steps after the first
        `length` steps are padding.
      length: number of steps.
      target: target of the outputs. For an error only at the end: numbers `(outputs,)`.
        For an error at every step: the index `(time,)` of the output unit whose target
        is 1.
      truth: `target` without the noise that some tasks add.
      measured: `(time,)`, true at the steps that are judged; None: only the end is.
      legal: `(time, outputs)`, whether each symbol can come next; None if the task does
        not define it.
    """

    inputs: jax.Array
    length: jax.Array
    target: jax.Array
    truth: jax.Array
    measured: jax.Array | None = None
    legal: jax.Array | None = None

    def judge(self, y: jax.Array, tolerance: float) -> tuple[jax.Array, jax.Array]:
        """Returns the mean absolute error of an answer, and whether it is right.

        An answer is right if every absolute error is below the tolerance. If `legal` is
        given, it is right if all legal symbols have larger outputs than all others.

        Args:
          y: outputs of a network for this sequence, `(outputs,)` at its end, or
            `(time, outputs)`.
          tolerance: bound of the absolute error, > 0.

        Raises:
          ValueError: `y` has another shape.
        """
        is_along = self.measured is not None
        shape = self.truth.shape
        if y.ndim != 1 + is_along or y.shape[:1] != shape:
            what = "(time, outputs)" if is_along else "(outputs,)"
            raise ValueError(
                f"`y` must be {what} of one sequence, with a first axis of {shape[0]}, "
                f"got {y.shape}. Use jax.vmap for many sequences."
            )
        if self.measured is None:
            error = jnp.abs(self.truth - y)
            return error.mean(), (error < tolerance).all()
        error = self._errors(y)
        mean = jnp.mean(error.mean(-1), where=self.measured)
        return mean, self.right_steps(y, tolerance).all()

    def right_steps(self, y: jax.Array, tolerance: float) -> jax.Array:
        """Returns the steps at which an answer is right or not measured, `(time,)`.

        Args:
          y: outputs, `(time, outputs)`.
          tolerance: see `judge`.
        """
        is_right = (self._errors(y) < tolerance).all(-1)
        if self.legal is not None:
            least = jnp.min(y, -1, where=self.legal, initial=jnp.inf)
            others = jnp.max(y, -1, where=~self.legal, initial=-jnp.inf)
            is_right = least > others
        return is_right | ~self.measured

    def _errors(self, y: jax.Array) -> jax.Array:
        """Returns absolute errors at every step, `(time, outputs)`."""
        return jnp.abs(jax.nn.one_hot(self.truth, y.shape[-1]) - y)
