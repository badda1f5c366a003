"""Checks of a cell for authors of cells."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import InvalidRngError

from rnncells.cells.base import RNNCellBase, initial_carry_of, split_shape
from rnncells.cells.carry import Carry, Sample, sample_structs
from rnncells.layers.loops import step_of, take_apart
from rnncells.layers.rnn import RNN
from rnncells.recurrence.pytrees import structs, zeros

STEPS = 5
BATCH = 3
# Rounding over a few steps, relative to the largest value of each array.
TOLERANCE = 1e-10
# The exponent of the tolerance for cells that compute in lower precision.
HALF_OF_THE_DIGITS = 0.5


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
      kind: `'right'`, `'wrong'`, or `'slow'`: correct, but could be faster.
      text: the result, and what to do.
    """

    kind: Literal["right", "slow", "wrong"]
    text: str


@dataclass(frozen=True)
class CellReport:
    """The results of `check_cell`; `print` shows one line for each.

    Attributes:
      findings: results in the order of the checks.
    """

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.kind != "wrong" for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{f.kind:5}  {f.text}" for f in self.findings)


def check_cell(
    cell: nn.Module, sample_input: Sample, key: chex.PRNGKey | None = None
) -> CellReport:
    """Checks whether a cell is correct, and whether it runs fast.

    Runs the cell for a few steps with random parameters and inputs, in float64 if the
    cell has the fields `dtype` and `param_dtype`, in the fast loop of `RNN` and in the
    plain loop.

    >>> import jax, rnncells
    >>> print(rnncells.check_cell(rnncells.GRUCell(4), (2, 3)))
    right  a step keeps the structure, shapes and dtypes of the carry.
    right  the rows of a batch are independent.
    right  the fast loop and the plain loop have equal values and gradients.
    right  the loop over time uses weight matrices only in its 2 products.

    Args:
      cell: instance of a cell.
      sample_input: one step of input, as for `initialize_carry`.
      key: random key; None uses `jax.random.key(0)`.

    Returns:
      The report; `report.ok` is true if nothing is wrong.

    Raises:
      ValueError: the cell's `features` is None.
    """
    if getattr(cell, "features", 0) is None:
        raise ValueError("`check_cell` needs a cell with `features`, got None.")
    key = jax.random.key(0) if key is None else key
    with jax.enable_x64(True):
        return CellReport(tuple(_findings(_in_float64(cell), sample_input, key)))


def _findings(cell: nn.Module, sample_input: Sample, key: chex.PRNGKey):
    checks = [_kept_carry, _rows, _loops, _weights]
    if _calls_members(cell):
        missing = _missing_members(cell)
        if missing:
            yield Finding("wrong", f"the cell does not define {missing}.")
            return
    stage = "The cell must initialize."
    try:
        setting = _Setting(cell, sample_input, key)
        for check in checks:
            stage = check.__doc__
            yield from check(setting)
    except InvalidRngError:
        yield Finding(
            "slow",
            "the cell draws random numbers, so other checks were skipped. Check the "
            "cell without random numbers, for example with `deterministic=True`.",
        )
    except Exception as error:  # a user's cell may raise any error
        yield Finding("wrong", f"{stage} It raised {error!r}.")


def _calls_members(cell: nn.Module) -> bool:
    """Returns whether the cell's `__call__` is `recur` of `project`."""
    return isinstance(cell, RNNCellBase) and type(cell).__call__ is RNNCellBase.__call__


def _missing_members(cell: RNNCellBase) -> list[str]:
    def is_own(name):
        return getattr(type(cell), name) is not getattr(RNNCellBase, name)

    missing = [name for name in ("project", "recur") if not is_own(name)]
    if not (is_own("carry_shape") or is_own("initialize_carry")):
        missing.append("carry_shape")
    return missing


class _Setting:
    """A cell with random parameters, carry and inputs, `(time, batch, ...)`."""

    def __init__(self, cell: RNNCellBase, sample_input: Sample, key: chex.PRNGKey):
        self.cell = cell
        # Random numbers of NumPy need no compilation.
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        sample, structure = jax.tree.flatten(sample_structs(sample_input))
        # All leaves have the batch axes of the first leaf.
        batch, _ = split_shape(cell, sample[0].shape)
        sequence = [
            _random(rng, (STEPS, BATCH, *leaf.shape[len(batch) :]), leaf.dtype)
            for leaf in sample
        ]
        self.inputs = jax.tree.unflatten(structure, sequence)
        first = jax.tree.map(lambda leaf: leaf[0], self.inputs)
        self.carry = _like(rng, initial_carry_of(cell, None, structs(first)))
        variables = jax.eval_shape(cell.init, key, self.carry, first)
        self.variables = _like(rng, variables)

    def step(
        self, carry: Carry, inputs: chex.ArrayTree
    ) -> tuple[Carry, chex.ArrayTree]:
        return self.cell.apply(self.variables, carry, inputs)


def _kept_carry(at: _Setting) -> Iterator[Finding]:
    """A step must keep the shapes of the carry."""
    first = jax.tree.map(lambda leaf: leaf[0], at.inputs)
    new, _ = jax.eval_shape(at.step, at.carry, first)
    kinds = [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), carry)
        for carry in (at.carry, new)
    ]
    if kinds[0] == kinds[1]:
        text = "a step keeps the structure, shapes and dtypes of the carry."
        yield Finding("right", text)
    else:
        text = f"a step changes the carry from {kinds[0]} to {kinds[1]}."
        yield Finding("wrong", text)


def _rows(at: _Setting) -> Iterator[Finding]:
    """A step must run on each row alone."""
    first = jax.tree.map(lambda leaf: leaf[0], at.inputs)
    rows = jax.jit(jax.vmap(at.step))(at.carry, first)
    if _equal(jax.jit(at.step)(at.carry, first), rows):
        yield Finding("right", "the rows of a batch are independent.")
    else:
        yield Finding(
            "wrong", "a step of a batch differs from a step of each row alone."
        )


def _loops(at: _Setting) -> Iterator[Finding]:
    """Both loops must run."""

    def gradients(implementation):
        rnn = RNN(
            at.cell,
            implementation=implementation,
            time_major=True,
            return_carry=True,
        )
        params = {"params": {"cell": at.variables.get("params", {})}}

        def loss(params, carry):
            outcome = rnn.apply(params, at.inputs, initial_carry=carry)
            leaves = jax.tree.leaves(outcome)
            return sum(jnp.sum(jnp.abs(jnp.sin(leaf + 1))) for leaf in leaves), outcome

        gradient = jax.value_and_grad(loss, (0, 1), has_aux=True, allow_int=True)
        (_, outcome), gradients = jax.jit(gradient)(params, at.carry)
        return outcome, jax.tree.map(
            lambda leaf: 0 if leaf.dtype == jax.dtypes.float0 else leaf, gradients
        )

    (fast, d_fast), (plain, d_plain) = gradients("auto"), gradients("scan")
    equal = {"values": _equal(fast, plain), "gradients": _equal(d_fast, d_plain)}
    other = [name for name, is_equal in equal.items() if not is_equal]
    if other:
        text = f"the {' and '.join(other)} of the fast and the plain loop differ."
        yield Finding("wrong", text)
    else:
        text = "the fast loop and the plain loop have equal values and gradients."
        yield Finding("right", text)


def _weights(at: _Setting) -> Iterator[Finding]:
    """The step must be taken apart."""
    params = {"params": {"cell": at.variables.get("params", {})}}
    args = (at.carry, None), (at.inputs,)
    pure, reason = RNN(at.cell).apply(params, step_of, *args, method=take_apart)
    if reason is not None:
        text = f"RNN runs the cell in the plain loop: the fast loop {reason}"
        yield Finding("slow", text)
        return
    leaves = jax.tree_util.tree_leaves_with_path(pure.given)
    outside = [
        jax.tree_util.keystr(path[3:])
        for (path, leaf), is_used in zip(leaves, pure.step.used_outside(), strict=True)
        if is_used and leaf.ndim > 1
    ]
    count = len(pure.step.products)
    products = f"{count} product" + ("" if count == 1 else "s")
    if outside:
        yield Finding(
            "slow",
            f"the loop over time uses {', '.join(outside)} outside of its {products} "
            "of the carry with weights, for example inside a condition or a loop. "
            "Multiply outside of it if you can.",
        )
    elif count:
        text = f"the loop over time uses weight matrices only in its {products}."
        yield Finding("right", text)
    else:
        text = "the carry is not multiplied by weights, so RNN runs the plain loop."
        yield Finding("right", text)


def _in_float64(cell: nn.Module) -> nn.Module:
    if not isinstance(cell, nn.Module):
        return cell
    fields = {"dtype": None, "param_dtype": jnp.float64}
    if isinstance(inner := getattr(cell, "cell", None), nn.Module):
        fields["cell"] = _in_float64(inner)
    own = {field.name for field in dataclasses.fields(cell)}
    return cell.clone(**{name: fields[name] for name in fields.keys() & own})


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype) -> jax.Array:
    """Returns normal random numbers, or zeros of integer dtypes."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real, imaginary = rng.standard_normal((2, *shape))
        return jnp.asarray(real + 1j * imaginary)
    # A sample that is a shape has the dtype bool.
    if dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(rng.standard_normal(shape))
    return jnp.zeros(shape, dtype)


def _like(rng: np.random.Generator, tree: chex.ArrayTree) -> chex.ArrayTree:
    """Replaces floating leaves by normal random numbers, since zeros hide mistakes."""

    def draw(leaf):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            return 0.5 * _random(rng, leaf.shape, leaf.dtype)
        return leaf if isinstance(leaf, jax.Array) else zeros(leaf)

    return jax.tree.map(draw, tree)


def _widest(dtype):
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    return jnp.complex128 if is_complex else jnp.float64


def _equal(first: chex.ArrayTree, second: chex.ArrayTree) -> bool:
    if jax.tree.structure(first) != jax.tree.structure(second):
        return False

    def near(a, b):
        if jnp.shape(a) != jnp.shape(b):
            return False
        dtype = jnp.result_type(a)
        tolerance = TOLERANCE
        if jnp.issubdtype(dtype, jnp.inexact) and dtype != _widest(dtype):
            tolerance = float(jnp.finfo(dtype).eps) ** HALF_OF_THE_DIGITS
        a, b = np.asarray(a), np.asarray(b)
        return bool(abs(a - b).max() <= tolerance * max(abs(b).max(), 1))

    return all(jax.tree.leaves(jax.tree.map(near, first, second)))
