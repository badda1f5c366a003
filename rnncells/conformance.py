"""What a cell gets right and wrong, for those who write cells."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from rnncells.base import RNNCellBase, split_shape
from rnncells.carry import PyTree, sample_structs
from rnncells.layers.loops import functions_of
from rnncells.layers.rnn import RNN
from rnncells.recurrence.engine import weights_outside_products
from rnncells.recurrence.parts import Recurrence

STEPS = 5
BATCH = 3
# Rounding over a few steps, relative to the largest value of each array.
TOLERANCE = 1e-10
HALF_OF_THE_DIGITS = 0.5  # of a cell that computes in lower precision than float64


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
      kind: `'right'`, `'wrong'`, or `'slow'` for what is right but could be faster.
      text: what was found, and what to do.
    """

    kind: Literal["right", "slow", "wrong"]
    text: str


@dataclass(frozen=True)
class CellReport:
    """What `check_cell` found; printed, a line for each finding.

    Attributes:
      findings: in the order in which they were made.
    """

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.kind != "wrong" for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{f.kind:5}  {f.text}" for f in self.findings)


def check_cell(
    cell: nn.Module, sample_input: PyTree, key: jax.Array | None = None
) -> CellReport:
    """Looks whether a cell keeps its contract, and whether it is fast.

    It is run over a few steps with random parameters and inputs, in float64 where its
    dtypes can be chosen, by the fast loop of `RNN` and by the plain one.

    >>> import jax, rnncells
    >>> print(rnncells.check_cell(rnncells.GRUCell(4), (2, 3)))
    right  `project` takes any leading axes.
    right  the carry keeps structure, shapes and dtypes.
    right  rows of a batch do not mix.
    right  the fast loop equals the plain one, in values and gradients.
    right  all weights of `recur` are in its 2 products.

    Args:
      cell: an instance.
      sample_input: one step of input, as for `initialize_carry`.
      key: for what is random.

    Returns:
      The report; `report.ok` says whether nothing is wrong.
    """
    key = jax.random.key(0) if key is None else key
    with jax.enable_x64(True):
        return CellReport(tuple(_findings(_in_float64(cell), sample_input, key)))


def _findings(cell: nn.Module, sample_input: PyTree, key: jax.Array):
    missing = [
        name
        for name in ("project", "recur", "carry_shape")
        if not isinstance(cell, RNNCellBase)
        or getattr(type(cell), name) is getattr(RNNCellBase, name)
    ]
    if missing or type(cell).__call__ is not RNNCellBase.__call__:
        why = f"does not define {missing}" if missing else "overrides `__call__`"
        yield Finding("slow", f"the cell {why}: RNN runs it by the plain loop.")
        return
    setting = _Setting(cell, sample_input, key)
    for check in (_leading_axes, _kept_carry, _rows, _loops, _weights):
        try:
            yield from check(setting)
        except Exception as error:  # whatever a user's cell raises is a finding
            yield Finding("wrong", f"{check.__doc__} It raised {error!r}.")
            return


class _Setting:
    """A cell with random parameters, carry and inputs, `(time, batch, ...)`."""

    def __init__(self, cell: RNNCellBase, sample_input: PyTree, key: jax.Array):
        self.cell = cell
        keys = iter(jax.random.split(key, 4))
        sample = sample_structs(sample_input)
        features = [
            split_shape(cell, leaf.shape)[1] for leaf in jax.tree.leaves(sample)
        ]
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(sample)]
        sequence = [
            _random(next(keys), (STEPS, BATCH, *shape), dtype)
            for shape, dtype in zip(features, dtypes, strict=True)
        ]
        self.inputs = jax.tree.unflatten(jax.tree.structure(sample), sequence)
        first = jax.tree.map(lambda leaf: leaf[0], self.inputs)
        self.carry = _like(next(keys), cell.initialize_carry(jax.random.key(0), first))
        variables = cell.init(jax.random.key(1), self.carry, first)
        self.variables = _like(next(keys), variables)

    def project(self, inputs: PyTree) -> PyTree:
        return self.cell.apply(self.variables, inputs, method="project")

    def step(self, carry: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        return self.cell.apply(self.variables, carry, inputs)


def _leading_axes(at: _Setting) -> Iterator[Finding]:
    """`project` must take any leading axes."""
    rows = jax.vmap(jax.vmap(at.project))(at.inputs)
    if _equal(at.project(at.inputs), rows):
        yield Finding("right", "`project` takes any leading axes.")
    else:
        yield Finding(
            "wrong",
            "`project` of a sequence differs from that of each of its rows: it must "
            "treat every axis but those of features as a batch axis.",
        )


def _kept_carry(at: _Setting) -> Iterator[Finding]:
    """A step must keep its carry."""
    new, _ = at.step(at.carry, jax.tree.map(lambda leaf: leaf[0], at.inputs))
    kinds = [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), carry)
        for carry in (at.carry, new)
    ]
    if kinds[0] == kinds[1]:
        yield Finding("right", "the carry keeps structure, shapes and dtypes.")
    else:
        yield Finding("wrong", f"a step takes the carry {kinds[0]} to {kinds[1]}.")


def _rows(at: _Setting) -> Iterator[Finding]:
    """Rows of a batch must not mix."""
    first = jax.tree.map(lambda leaf: leaf[0], at.inputs)
    if _equal(at.step(at.carry, first), jax.vmap(at.step)(at.carry, first)):
        yield Finding("right", "rows of a batch do not mix.")
    else:
        yield Finding(
            "wrong", "a step of a batch differs from the steps of each of its rows."
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
        (_, outcome), gradients = gradient(params, at.carry)
        return outcome, jax.tree.map(
            lambda leaf: 0 if leaf.dtype == jax.dtypes.float0 else leaf, gradients
        )

    (fast, d_fast), (plain, d_plain) = gradients("auto"), gradients("scan")
    if not _equal(fast, plain):
        yield Finding("wrong", "the fast loop gives other values than the plain one.")
    elif not _equal(d_fast, d_plain):
        yield Finding(
            "wrong",
            "the fast loop gives other gradients than the plain one: is a layer given "
            "to `product` that is not affine in its inputs?",
        )
    else:
        text = "the fast loop equals the plain one, in values and gradients."
        yield Finding("right", text)


def _weights(at: _Setting) -> Iterator[Finding]:
    """The weights of `recur` must be found."""
    params = at.variables.get("params", {})
    project, recur = functions_of(at.cell, at.carry)

    def step(params, shared, carry, z, flags):
        return recur(params, carry, z)

    recurrence = Recurrence(project, step)
    count, outside = weights_outside_products(recurrence, params, at.carry, at.inputs)
    names = [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(outside)
        if leaf.ndim > 1
    ]
    products = f"{count} product" + ("" if count == 1 else "s")
    if names:
        yield Finding(
            "slow",
            f"`recur` uses {', '.join(names)} outside of its {products}: where it "
            "multiplies the carry, write self.affine(...) or self.product(...).",
        )
    else:
        yield Finding("right", f"all weights of `recur` are in its {products}.")


def _in_float64(cell: nn.Module) -> nn.Module:
    fields = {"dtype": None, "param_dtype": jnp.float64}
    known = {name: value for name, value in fields.items() if hasattr(cell, name)}
    return cell.clone(**known) if isinstance(cell, nn.Module) else cell


def _random(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
    # A sample given as a shape has no dtype of its own.
    if dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.floating):
        return jax.random.normal(key, shape, jnp.float64)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.random.normal(key, shape, jnp.complex128)
    return jnp.zeros(shape, dtype)


def _like(key: jax.Array, tree: PyTree) -> PyTree:
    """Returns normal numbers in place of floating leaves: zeros hide mistakes."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, max(len(leaves), 1))
    leaves = [
        0.5 * jax.random.normal(key, leaf.shape, _widest(leaf.dtype))
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
        else leaf
        for key, leaf in zip(keys, leaves, strict=False)
    ]
    return jax.tree.unflatten(structure, leaves)


def _widest(dtype):
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    return jnp.complex128 if is_complex else jnp.float64


def _equal(first: PyTree, second: PyTree) -> bool:
    if jax.tree.structure(first) != jax.tree.structure(second):
        return False

    def near(a, b):
        if jnp.shape(a) != jnp.shape(b):
            return False
        dtype = jnp.result_type(a)
        tolerance = TOLERANCE
        if jnp.issubdtype(dtype, jnp.inexact) and dtype != _widest(dtype):
            tolerance = float(jnp.finfo(dtype).eps) ** HALF_OF_THE_DIGITS
        difference, largest = jnp.abs(a - b).max(), jnp.abs(b).max()
        return bool(difference <= tolerance * jnp.maximum(largest, 1))

    return all(jax.tree.leaves(jax.tree.map(near, first, second)))
