"""Checks of a cell for authors of cells."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree, PRNGKey
from flax.core import DenyList
from flax.errors import InvalidRngError
from jax import Array

from rnncells.cells.contract.any_cell import (
    apply_step,
    deterministic_option,
    initialize_carry,
    split_shape,
)
from rnncells.cells.contract.base import RNNCellBase
from rnncells.cells.contract.carry import (
    Carry,
    InputSpec,
    check_returned,
    input_structs,
    is_alike,
)
from rnncells.cells.contract.matrix import MatrixRNNCellBase
from rnncells.layers.contract.checks import cell_error
from rnncells.layers.rnn import RNN
from rnncells.loops import table
from rnncells.loops.request import Obstacle, StepRequest, changed
from rnncells.recurrence.engine.split_step import SplitStep
from rnncells.recurrence.pytrees import structs, tree_text, zeros
from rnncells.recurrence.schedule import StepInputs

STEPS = 5
BATCH = 3
# A cell can mix the rows of a batch in a condition such as `jnp.all(x > 0)`. To find
# that, rows are drawn several times, and are positive, negative, zero or large.
DRAWS = 48
ROW_FACTORS = (-20, -1, 0, 1, 20)
# Rounding over a few steps, relative to the largest value of each array.
TOLERANCE = 1e-10

Kind = Literal["right", "skipped", "slow", "wrong"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    `kind` is `'right'`, `'wrong'`, `'slow'` (correct, but could be faster), or
    `'skipped'` (not checked). `text` is the result, and what to do.
    """

    kind: Kind
    text: str


@dataclass(frozen=True)
class CellReport:
    """The results of `check_cell` in order; `print` shows one line for each."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; also true if checks were skipped."""
        return all(finding.kind != "wrong" for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{f.kind:7}  {f.text}" for f in self.findings)


def check_cell(
    cell: nn.Module, sample_input: InputSpec, key: PRNGKey | None = None
) -> CellReport:
    """Checks whether a cell is correct, and whether it runs fast.

    Runs the cell for a few steps with random parameters and inputs, in float64 if the
    cell has the fields `dtype` and `param_dtype`, in the fast loop of `RNN` and in the
    plain loop.

    >>> import jax, rnncells
    >>> print(rnncells.check_cell(rnncells.GRUCell(4), (2, 3)))
    right    a step keeps the structure, shapes and dtypes of the carry.
    right    the rows of a batch are independent.
    right    the fast loop and the plain loop have equal values and gradients.
    right    the loop over time uses weight matrices only in its 2 products.

    Cells with the field `deterministic`, such as `ZoneoutCell`, are called with
    deterministic=True. Other cells that draw random numbers, and cells that change
    collections at a step, such as statistics, are not checked: the report has one
    finding of the kind `'skipped'`. Collections that a cell only reads are constants,
    with the values of its `init`.

    Args:
      cell: instance of a cell: a `flax.linen` module.
      sample_input: one step of input, as for `initialize_carry`.
      key: random key; None uses `jax.random.key(0)`.

    Raises:
      ValueError: the cell's `features` is None.
      TypeError: `cell` is a class, or not a `flax.linen` module; `sample_input` is no
        array, struct or shape.
    """
    if not isinstance(cell, nn.Module):
        raise cell_error("check_cell", cell)
    if getattr(cell, "features", 0) is None:
        raise ValueError("`check_cell` needs a cell with `features`, got None.")
    input_structs(sample_input)  # raises TypeError if it is no sample
    key = jax.random.key(0) if key is None else key
    with jax.enable_x64(True):
        return CellReport(tuple(_findings(_in_float64(cell), sample_input, key)))


def _findings(
    cell: nn.Module, sample_input: InputSpec, key: PRNGKey
) -> Iterator[Finding]:
    if missing := _missing_members(cell):
        yield Finding("wrong", f"the cell does not define {missing}.")
        return
    checks = {
        _kept_carry: "a step raised {}.",
        _rows: "a step on a single row, without batch axes, raised {}. A cell must "
        "also run without batch axes: use negative axes, such as `x.shape[-1]`.",
        _loops: "`RNN(cell)` raised {}.",
        _weights: "`RNN(cell)` raised {}.",
    }
    failure = "`num_feature_dims`, `initialize_carry` or `init` raised {}."
    try:
        setting = _Setting(cell, sample_input, key)
        for check, failure in checks.items():
            yield check(setting)
    except _LastFinding as last:
        yield Finding(*last.args)
    except InvalidRngError:
        yield Finding(
            "skipped",
            "the cell draws random numbers, so all checks were skipped. Check the "
            "cell without random numbers, for example with `deterministic=True`.",
        )
    except Exception as error:  # a user's cell may raise any error
        yield Finding("wrong", failure.format(repr(error)))


class _LastFinding(Exception):
    """Ends the checks with a finding, whose kind and text are its arguments."""


def _missing_members(cell: nn.Module) -> list[str]:
    """Returns the members that a cell with our `__call__` must define, and lacks."""

    def is_inherited(name: str) -> bool:
        return getattr(type(cell), name) is getattr(RNNCellBase, name)

    if not (isinstance(cell, RNNCellBase) and is_inherited("__call__")):
        return []
    missing = [name for name in ("project", "recur") if is_inherited(name)]
    if is_inherited("carry_shape") and is_inherited("initialize_carry"):
        missing.append("carry_shape")
    return missing


class _Setting:
    """A cell with random parameters, carry and inputs, `(time, batch, ...)`."""

    def __init__(self, cell: nn.Module, sample_input: InputSpec, key: PRNGKey):
        self.cell, self.name = cell, type(cell).__name__
        # Random numbers of NumPy need no compilation.
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        sample = input_structs(sample_input)
        # All leaves have the batch axes of the first leaf.
        batch, _ = split_shape(cell, jax.tree.leaves(sample)[0].shape)

        def sequence(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return leaf.update(shape=(STEPS, BATCH, *leaf.shape[len(batch) :]))

        self.inputs = _like(rng, jax.tree.map(sequence, sample))
        self.first = jax.tree.map(lambda leaf: leaf[0], self.inputs)
        self.carry = _like(rng, initialize_carry(cell, None, structs(self.first)))
        _check_initial_carry(self.name, self.carry)
        # None for cells without this field, which must not draw random numbers.
        self.deterministic = True if hasattr(type(cell), "deterministic") else None
        self.option: dict[str, Any] = deterministic_option(cell, self.deterministic)
        options: Any = self.option
        init: Any = partial(cell.init, **options)
        shapes = jax.eval_shape(init, key, self.carry, self.first)
        self.variables = _like(rng, {"params": shapes.get("params", {})})
        if constants := sorted(shapes.keys() - {"params"}):
            # Random numbers may be no valid constants, such as time constants.
            created = init(key, self.carry, self.first)
            self.variables |= {name: created[name] for name in constants}
        for name in constants:
            self._leave_out(name)
        self.in_layer = {c: {"cell": tree} for c, tree in self.variables.items()}

    def _leave_out(self, collection: str) -> None:
        """Leaves out a collection if a step runs without, as those of `sow`."""
        everything = self.variables
        self.variables = {c: v for c, v in everything.items() if c != collection}
        try:
            jax.eval_shape(self.step, self.carry, self.first)
        except Exception:  # without a collection, a step may raise any error
            self.variables = everything

    def step(self, carry: Carry, inputs: ArrayTree) -> Any:
        return self.cell.apply(self.variables, carry, inputs, **self.option)

    def check_collections(self) -> None:
        """Ends the checks if a step changes collections."""

        def changed_by_step(carry: Carry, inputs: ArrayTree) -> dict[str, Any]:
            options: Any = {"mutable": DenyList("params"), **self.option}
            _, after = self.cell.apply(self.variables, carry, inputs, **options)
            return changed(self.variables, after)

        new = jax.eval_shape(changed_by_step, self.carry, self.first)
        if names := sorted(new.keys() & self.variables.keys()):
            _skip(f"a step changes the collections {names}")


def _skip(reason: str) -> NoReturn:
    text = f"{reason}, which `check_cell` does not support, so all checks were skipped."
    raise _LastFinding("skipped", text)


def _check_initial_carry(name: str, carry: Carry) -> None:
    leaves = jax.tree.leaves(carry)
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
        _skip("the carry has random keys")
    if any(leaf.shape[:1] != (BATCH,) for leaf in leaves):
        raise _LastFinding(
            "wrong",
            f"`initialize_carry` of {name} must return arrays with the batch axes of "
            f"its inputs, {(BATCH,)}, as their first axes, got the shapes "
            f"{jax.tree.map(jnp.shape, carry)}.",
        )


def _kept_carry(setting: _Setting) -> Finding:
    """Checks that a step returns a carry like the carry that it got."""
    setting.check_collections()
    returned = jax.eval_shape(setting.step, setting.carry, setting.first)
    try:
        new, _ = check_returned("__call__", setting.name, returned)
    except TypeError as error:
        raise _LastFinding("wrong", str(error)) from error
    before, after = map(tree_text, (setting.carry, new))
    if before == after:
        text = "a step keeps the structure, shapes and dtypes of the carry."
        return Finding("right", text)
    text = (
        f"`__call__` of {setting.name} must return (new_carry, output), a new carry "
        f"with the structure, shapes and dtypes of the old, {before}, got {after}."
    )
    if not is_alike(new, setting.carry):
        raise _LastFinding("wrong", text)
    return Finding("wrong", text)


def _rows(setting: _Setting) -> Finding:
    """Checks that a step of a batch equals a step of each row alone."""
    step, rng = jax.jit(setting.step), np.random.default_rng(0)
    for number in range(DRAWS):
        factors = rng.choice(ROW_FACTORS, BATCH)

        def scale(leaf: Array) -> np.ndarray:
            """Multiplies each row, or its absolute values, by a factor."""
            rows = np.asarray(leaf)
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                return rows
            rows = np.abs(rows) if number % 2 else rows
            return (rows.T * factors).T.astype(leaf.dtype)

        arguments = jax.tree.map(scale, _like(rng, (setting.carry, setting.first)))
        alone = [
            step(*jax.tree.map(lambda leaf: leaf[row], arguments))
            for row in range(BATCH)
        ]
        rows = jax.tree.map(lambda *leaves: np.stack(leaves), *alone)
        if not _equal(step(*arguments), rows):
            text = "a step of a batch differs from steps of its rows."
            return Finding("wrong", f"{text} Reduce only feature axes.")
    return Finding("right", "the rows of a batch are independent.")


def _loops(setting: _Setting) -> Finding:
    """Checks that the fast loop and the plain loop are equal."""

    def gradients(implementation: Any) -> tuple:
        rnn = RNN(
            setting.cell,
            implementation=implementation,
            time_major=True,
            return_carry=True,
        )

        def loss(variables: Any, carry: Carry) -> tuple:
            options: Any = {"deterministic": setting.deterministic}
            results = rnn.apply(
                variables, setting.inputs, initial_carry=carry, **options
            )
            leaves = jax.tree.leaves(results)
            return sum(jnp.sum(jnp.abs(jnp.sin(leaf + 1))) for leaf in leaves), results

        gradient = jax.value_and_grad(loss, (0, 1), has_aux=True, allow_int=True)
        (_, results), gradients = jax.jit(gradient)(setting.in_layer, setting.carry)
        return results, jax.tree.map(
            lambda leaf: 0 if leaf.dtype == jax.dtypes.float0 else leaf, gradients
        )

    (fast, d_fast), (plain, d_plain) = gradients("auto"), gradients("scan")
    equal = {"values": _equal(fast, plain), "gradients": _equal(d_fast, d_plain)}
    unequal = [name for name, is_equal in equal.items() if not is_equal]
    loop, hint = "fast", ""
    if table.LINEAR.is_for(setting.cell):
        # The method in which a cell says how it is linear in its carry.
        is_matrix = isinstance(setting.cell, MatrixRNNCellBase)
        method = "update" if is_matrix else "coefficients"
        loop, hint = "linear", f" `{method}` must agree with `recur`."
    elif table.CAUSAL_CONV.is_for(setting.cell):
        loop = "convolution's"
    if unequal:
        text = f"the {' and '.join(unequal)} of the {loop} and the plain loop differ."
        return Finding("wrong", text + hint)
    text = f"the {loop} loop and the plain loop have equal values and gradients."
    return Finding("right", text)


def _weights(setting: _Setting) -> Finding:
    """Checks that the loop over time uses weights only in products."""
    reason = None
    if table.LINEAR.is_for(setting.cell):
        reason = "the step is linear in the carry"
    elif table.CAUSAL_CONV.is_for(setting.cell):
        reason = "the carry is the last inputs"
    if reason:
        return Finding("right", f"{reason}, so RNN computes all steps at once.")
    step = partial(apply_step, deterministic=setting.deterministic)

    def split_step(rnn: RNN) -> tuple[SplitStep, ArrayTree]:
        xs = StepInputs(setting.inputs)
        request = StepRequest(rnn, (setting.carry, None), xs, step)
        return request.split_step, request.function.consts

    rnn: Any = RNN(setting.cell)
    try:
        split, consts = rnn.apply(setting.in_layer, method=split_step)
    except Obstacle as obstacle:
        text = f"RNN runs the cell in the plain loop: the fast loop {obstacle}"
        return Finding("slow", text)
    leaves = jax.tree_util.tree_leaves_with_path(consts)
    outside = [
        jax.tree_util.keystr(path[3:])
        for (path, leaf), is_used in zip(leaves, split.used_outside(), strict=True)
        if is_used and leaf.ndim > 1
    ]
    count = len(split.products)
    products = f"{count} product" + ("" if count == 1 else "s")
    if outside:
        return Finding(
            "slow",
            f"the loop over time uses {', '.join(outside)} outside of its {products} "
            "of the carry with weights, for example inside a condition or a loop. "
            "Multiply outside of it if you can.",
        )
    text = f"the loop over time uses weight matrices only in its {products}."
    if not count:
        text = "the carry is not multiplied by weights, so RNN runs the plain loop."
    return Finding("right", text)


def _in_float64(cell: nn.Module) -> nn.Module:
    fields: dict[str, Any] = {"dtype": None, "param_dtype": jnp.float64}
    if isinstance(inner := getattr(cell, "cell", None), nn.Module):
        fields["cell"] = _in_float64(inner)
    names = {field.name for field in dataclasses.fields(cell)}
    return cell.clone(**{name: fields[name] for name in fields.keys() & names})


def _like(rng: np.random.Generator, tree: ArrayTree) -> ArrayTree:
    """Replaces inexact leaves by normal random numbers, since zeros hide mistakes."""

    def draw(leaf: Any) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf if isinstance(leaf, Array) else zeros(leaf)
        numbers = rng.standard_normal(leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            numbers = numbers + 1j * rng.standard_normal(leaf.shape)
        return jnp.asarray(0.5 * numbers)

    return jax.tree.map(draw, tree)


def _equal(first: ArrayTree, second: ArrayTree) -> bool:
    structure: Any = jax.tree.structure(first)
    if structure != jax.tree.structure(second):
        return False

    def is_near(a: Any, b: Any) -> bool:
        a, b = np.asarray(a), np.asarray(b)
        tolerance = TOLERANCE
        if a.shape != b.shape:
            return False
        if jnp.issubdtype(a.dtype, jnp.inexact) and jnp.finfo(a.dtype).bits < 64:
            # Half of the digits, for cells that compute in lower precision.
            tolerance = float(jnp.finfo(a.dtype).eps) ** 0.5
        largest = np.max(np.abs(b), initial=1, where=np.isfinite(b))
        return np.allclose(a, b, rtol=0, atol=tolerance * largest, equal_nan=True)

    return all(jax.tree.leaves(jax.tree.map(is_near, first, second)))
