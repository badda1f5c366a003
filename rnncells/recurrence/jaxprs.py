"""Functions as equations: traced, inlined, and evaluated one by one."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import jax
from jax import Array
from jax.extend import core as jex
from jax.extend import source_info_util

from rnncells.recurrence.primitives import CUSTOM, INLINED, PRODUCTS
from rnncells.recurrence.pytrees import StructTree, Tree

# `jex.Var`, and `jex.Var` or `jex.Literal`; JAX types their avals without shapes.
Variable: TypeAlias = Any
Atom: TypeAlias = Any
Values = dict[Variable, Any]
# From an equation and its operands to its results.
Rule: TypeAlias = Callable[[Any, list[Any]], Sequence[Any]]
# For each variable, the number of the last argument that it depends on.
Stages = dict[Variable, int]


def read(values: Values, atoms: Iterable[Atom]) -> list[Any]:
    return [values[v] if is_variable(v) else v.val for v in atoms]


def bind(equation: Any, operands: list[Array]) -> list[Array]:
    primitive = equation.primitive
    params = primitive.get_bind_params(equation.params)
    with _named_as(equation), equation.ctx.manager:
        results = primitive.bind(*operands, **params)
    return results if primitive.multiple_results else [results]


def _named_as(equation: Any) -> Any:
    """Returns a context that keeps the line and the named scope of an equation."""
    info = equation.source_info
    names = source_info_util.current_name_stack() + info.name_stack
    return source_info_util.user_context(info.traceback, name_stack=names)


def evaluate(equations: Iterable[Any], values: Values, rule: Rule = bind) -> None:
    """Evaluates equations by a rule, and adds their results to `values`."""
    for equation in equations:
        results = rule(equation, read(values, equation.invars))
        values.update(zip(equation.outvars, results, strict=True))


class Part(NamedTuple):
    """Equations that are evaluated together, and results to read."""

    equations: Sequence[Any]
    results: Sequence[Atom]

    @property
    def operands(self) -> list[Variable]:
        """The variables that the part reads, each once."""
        computed = set(outvars(self.equations))
        return [v for v in reads(self.equations, self.results) if v not in computed]

    def __call__(self, values: Values) -> list[Array]:
        """Returns the results; `values` has the variables that the part reads."""
        values = dict(values)
        evaluate(self.equations, values)
        return read(values, self.results)

    def of_all_steps(
        self, invariant: Values, per_step: Values, steps: int
    ) -> list[Array]:
        """Returns the results of all steps, `(steps, ...)`, at once."""

        def of_step(operands: list[Array]) -> list[Array]:
            return self(invariant | dict(zip(per_step, operands, strict=True)))

        return jax.vmap(of_step, axis_size=steps)(list(per_step.values()))


@dataclass(frozen=True, eq=False)
class Equations:
    """A function without inner calls."""

    arguments: list[list[Variable]]  # of each argument, those of its leaves
    equations: tuple[Any, ...]
    results: list[Atom]  # of the leaves of its result
    constants: Values  # the arrays that it closes over
    jaxpr: Any  # also with equations that no result depends on

    @cached_property
    def stages(self) -> Stages:
        """The number of the last argument that each variable depends on."""
        stages = dict.fromkeys(self.constants, 0)
        for number, leaves in enumerate(self.arguments):
            stages |= dict.fromkeys(leaves, number)
        for equation in self.equations:
            stage = max((stages[v] for v in variables(equation)), default=0)
            stages |= dict.fromkeys(equation.outvars, stage)
        return stages

    def stage(self, atom: Atom) -> int:
        """Returns the stage of a variable, -1 for a literal."""
        return self.stages[atom] if is_variable(atom) else -1

    def initial_values(self, *args: Tree) -> Values:
        arguments = [v for leaves in self.arguments for v in leaves]
        return self.constants | dict(zip(arguments, jax.tree.leaves(args), strict=True))

    def __call__(self, *args: Tree, rule: Rule = bind) -> list[Any]:
        """Returns the leaves of the result, by JAX or by another rule."""
        values = self.initial_values(*args)
        evaluate(self.equations, values, rule)
        return read(values, self.results)

    @cached_property
    def producers(self) -> dict[Variable, Any]:
        return {v: e for e in self.equations for v in e.outvars}

    @cached_property
    def users(self) -> dict[Variable, list[Any]]:
        """The equations that read each variable, and None for a result."""
        users = defaultdict(list)
        for equation in self.equations:
            for v in variables(equation):
                users[v].append(equation)
        for v in filter(is_variable, self.results):
            users[v].append(None)
        return users


def multiplies(equation: Any) -> bool:
    """Says whether an equation is a product, or an inner function that can have one."""
    return equation.primitive.name in PRODUCTS or bool(inner_jaxprs(equation))


def is_call(equation: Any) -> bool:
    return equation.primitive.name in INLINED


def trace(
    function: Callable, *args: Tree, is_inlined: Callable[[Any], bool] = is_call
) -> tuple[Equations, StructTree]:
    """Returns a pure function as equations, and shapes and dtypes of its result."""
    nested, result = jax.make_jaxpr(function, return_shape=True)(*args)
    flat = jax.make_jaxpr(as_function(nested, is_inlined))(*jax.tree.leaves(args))
    jaxpr, leaves = flat.jaxpr, iter(flat.jaxpr.invars)
    arguments = [[next(leaves) for _ in jax.tree.leaves(tree)] for tree in args]
    constants = dict(zip(jaxpr.constvars, flat.consts, strict=True))
    equations = live_equations(jaxpr.eqns, jaxpr.outvars)
    return Equations(arguments, equations, jaxpr.outvars, constants, jaxpr), result


def as_function(jaxpr: Any, is_inlined: Callable[[Any], bool] = is_call) -> Callable:
    """Returns a jaxpr as a function that returns a list."""
    consts, jaxpr = getattr(jaxpr, "consts", ()), _open(jaxpr)

    def rule(equation: Any, operands: list[Array]) -> list[Array]:
        if not is_inlined(equation):
            return bind(equation, operands)
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        with _named_as(equation):
            return as_function(inner, is_inlined)(*operands)

    def call(*args: Array) -> list[Array]:
        operands = (*jaxpr.constvars, *jaxpr.invars)
        values = dict(zip(operands, (*consts, *args), strict=True))
        evaluate(jaxpr.eqns, values, rule)
        return read(values, jaxpr.outvars)

    return call


def is_variable(atom: Atom) -> bool:
    """Says whether an operand or a result is no literal."""
    return not isinstance(atom, jex.Literal)


def variables(equation: Any) -> list[Variable]:
    return [v for v in equation.invars if is_variable(v)]


def reads(equations: Iterable[Any], results: Iterable[Atom] = ()) -> list[Variable]:
    """Returns the variables that equations and results read, each once."""
    operands = [v for equation in equations for v in variables(equation)]
    return list(dict.fromkeys((*operands, *filter(is_variable, results))))


def outvars(equations: Iterable[Any]) -> list[Variable]:
    return [v for equation in equations for v in equation.outvars]


def inner_jaxprs(equation: Any) -> list[Any]:
    """Returns the jaxprs that an equation holds, without their constants."""
    params = list(equation.params.values())
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: _is_jaxpr(_open(leaf)))
    return [_open(leaf) for leaf in leaves if _is_jaxpr(_open(leaf))]


def _open(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns")


def live_equations(
    equations: Sequence[Any], results: Iterable[Atom]
) -> tuple[Any, ...]:
    """Returns the equations that results depend on, in order."""
    read = set(filter(is_variable, results))
    live = []
    for equation in reversed(equations):
        if read & set(equation.outvars):
            read |= set(variables(equation))
            live.append(equation)
    return tuple(reversed(live))


def has_side_effects(jaxpr: Any) -> bool:
    """Says whether a jaxpr has side effects, such as those of `jax.debug.print`."""
    # JAX counts the use of a named axis, as in `jax.lax.psum`, as an effect.
    return any(type(e).__name__ != "NamedAxisEffect" for e in jaxpr.effects)


def why_not_vmapped(jaxpr: Any, varying: list[bool]) -> str | None:
    """Returns why `vmap` over the operands that vary cannot be used, None if it can."""
    if jaxpr.effects:
        return (
            "has side effects, such as `jax.debug.print`, or uses a named axis, as in "
            "`jax.lax.psum`"
        )
    threefry = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype
    for equation, operands, results in _all_equations(jaxpr, varying, []):
        name = equation.primitive.name
        if name == "pure_callback" and equation.params["vmap_method"] is None:
            return "calls `jax.pure_callback` without `vmap_method`"
        # Other generators draw other numbers under `vmap`.
        if name == "random_bits" and any(operands):
            if equation.invars[0].aval.dtype != threefry:
                return "draws random numbers by a generator other than threefry2x32"
        # JAX then sums cotangents that should stay apart.
        if name == "custom_vjp_call" and any(operands) and not all(results):
            return "has a `jax.custom_vjp` with a result that is the same at each step"
    return None


def _all_equations(jaxpr: Any, varying: list[bool], results: list[bool]) -> Iterator:
    """Yields each equation, with flags of which operands and results vary.

    The flags of the results of the jaxpr are added to `results`.
    """
    varies = dict(zip(jaxpr.invars, varying, strict=True))

    def of(variables: list[Any]) -> list[bool]:
        return [not hasattr(v, "val") and varies.get(v, False) for v in variables]

    for equation in jaxpr.eqns:
        operands = of(equation.invars)
        inner = inner_jaxprs(equation)
        out = [any(operands)] * len(equation.outvars)
        if equation.primitive.name in (*INLINED, *CUSTOM):
            # Their inner jaxpr has the operands and the results of the call.
            out = []
            yield from _all_equations(inner[0], operands, out)
        else:
            for body in inner:
                yield from _all_equations(body, [any(operands)] * len(body.invars), [])
        yield equation, operands, out
        varies.update(zip(equation.outvars, out, strict=True))
    results += of(jaxpr.outvars)
