"""What depends on what in a pure function."""

from collections.abc import Callable

import jax

from rnncells.recurrence.trees import BoolTree, Tree


class Traced:
    """A function, traced once to be asked which leaves depend on which.

    Every operation counts as depending on all of its operands, so the answers are
    conservative.

    Attributes:
      result: shapes and dtypes of the function's result.
    """

    def __init__(self, function: Callable, *args: Tree):
        """Traces `function` with `args`: arrays, or `jax.ShapeDtypeStruct`s."""
        closed, self.result = jax.make_jaxpr(function, return_shape=True)(*args)
        self._jaxpr = closed.jaxpr
        self._args = jax.tree.structure(args)

    def read(self) -> BoolTree:
        """Returns, for each leaf of the arguments, whether the result depends on it."""
        needed = {id(v) for v in self._jaxpr.outvars}
        for equation in reversed(self._jaxpr.eqns):
            if any(id(v) in needed for v in equation.outvars):
                needed.update(id(v) for v in equation.invars)
        read = [id(v) in needed for v in self._jaxpr.invars]
        return jax.tree.unflatten(self._args, read)

    def depending(self) -> BoolTree:
        """Returns, for each leaf of the result, whether it depends on arguments."""
        depending = {id(v) for v in self._jaxpr.invars}
        for equation in self._jaxpr.eqns:
            if any(id(v) in depending for v in equation.invars):
                depending.update(id(v) for v in equation.outvars)
        results = [id(v) in depending for v in self._jaxpr.outvars]
        return jax.tree.unflatten(jax.tree.structure(self.result), results)

    def passed_on(self) -> list[int]:
        """Returns, for each leaf of the second result, which of the first's it is.

        As its number in the first result, -1 if it is none of its leaves.
        """
        count = len(jax.tree.leaves(self.result[0]))
        outvars = [id(v) for v in self._jaxpr.outvars]
        first, second = outvars[:count], outvars[count:]
        return [first.index(v) if v in first else -1 for v in second]
