"""What every task makes: one sequence, and what is to be said of it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Sequence(NamedTuple):
    """One sequence, or many of them with further axes.

    Attributes:
      inputs: `(time, inputs)`, or of symbols their indices `(time,)`; whatever follows
        the first `length` steps is padding.
      length: number of steps.
      target: what the outputs are to be. With an error at the end alone, numbers
        `(outputs,)`; with one at every step, the index `(time,)` of the output unit
        that is to be 1.
      truth: as `target`, without the noise that some tasks put on it.
      measured: `(time,)`, the steps at which answers are judged; None where there is
        one answer, at the end.
      legal: `(time, outputs)`, whether each symbol may come next; None where the task
        does not ask.
    """

    inputs: jax.Array
    length: jax.Array
    target: jax.Array
    truth: jax.Array
    measured: jax.Array | None = None
    legal: jax.Array | None = None

    def judge(self, y: jax.Array, tolerance: float) -> tuple[jax.Array, jax.Array]:
        """Returns the mean absolute error of an answer, and whether it is right.

        It is, if every absolute error is below the tolerance; where symbols are legal
        or not, if all those that are have greater outputs than all others.

        Args:
          y: outputs of a network for this one sequence, `(outputs,)` at its end, or
            `(time, outputs)`.
          tolerance: as above, > 0.

        Raises:
          ValueError: outputs of another shape.
        """
        is_along = self.measured is not None
        shape = self.truth.shape
        if y.ndim != 1 + is_along or y.shape[:1] != shape:
            what = "(time, outputs)" if is_along else "(outputs,)"
            raise ValueError(
                f"`y` must be {what} of one sequence, with {shape[0]} first; got "
                f"{y.shape}. jax.vmap judges many."
            )
        if self.measured is None:
            error = jnp.abs(self.truth - y)
            return error.mean(), (error < tolerance).all()
        error = self._errors(y)
        mean = jnp.mean(error.mean(-1), where=self.measured)
        return mean, self.right_steps(y, tolerance).all()

    def right_steps(self, y: jax.Array, tolerance: float) -> jax.Array:
        """Returns at which steps an answer is right, or is not measured: `(time,)`.

        Args:
          y: as in `judge`, `(time, outputs)`.
          tolerance: likewise.
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
