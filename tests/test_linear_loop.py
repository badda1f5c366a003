"""The loops that take many steps at once against the plain loop: every option."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    ALL_CELLS,
    assert_close,
    random_like,
    random_params,
    values_and_gradients,
)
from levels import by_level, pairwise

import rnncells
from rnncells.loops.table import LINEAR as LINEAR_LOOP
from rnncells.recurrence.linear.elementwise import solve_linear
from rnncells.recurrence.linear.matrix_state import (
    MatrixChunk,
    MatrixState,
    OuterUpdate,
    read,
    step,
)

BATCH, TIME = 3, 9
LINEAR = [n for n, case in ALL_CELLS.items() if LINEAR_LOOP.is_for(case.make())]
# One cell of each kind: real, complex, exponential gates, the delta rule with a decay,
# and the last inputs.
KINDS = ["MinGRUCell", "LRUCell", "MLSTMCell", "GatedDeltaNetCell", "CausalConvCell"]
MEMORY = {"full": "full", "sqrt": "sqrt", "chunk": rnncells.Chunk(4)}
MEMORY |= {"policy": jax.checkpoint_policies.dots_saveable}
OPTIONS = list(
    itertools.product(
        *((False, True), (False, True), (False, True)),
        *((None, "own", "given"), ("run", "hold", "zero")),
        *(("return_carry", "return_all_carries"), MEMORY, ("auto", "associative")),
    )
)
# All pairs of options, with each cell.
PAIRS = pairwise(OPTIONS)
GRID = [(name, *row) for name in (*LINEAR, "CausalConvCell") for row in PAIRS]
# Rows with a mask, resets, and less memory than `full`.
HARD = [row for row in PAIRS if row[2] and row[3] and row[6] != "full"]
CHOSEN = [(name, *row) for name, row in zip(KINDS, itertools.cycle(HARD))]


def arguments_of(rng, case, lengths, mask, resets, carry):
    """Returns arguments of a call whose masks have holes, and inputs with NaN there."""
    inputs = case.inputs(rng, BATCH, TIME)
    valid, call = np.ones((BATCH, TIME), bool), {"initial_carry": carry}
    if lengths:
        call["seq_lengths"] = jnp.array([TIME, 0, 5])
        valid &= np.arange(TIME) < np.array([[TIME], [0], [5]])
    if mask:
        call["mask"] = jnp.asarray(rng.random((BATCH, TIME)) > 0.4)
        valid &= np.asarray(call["mask"])
    if resets is not None:
        call["resets"] = jnp.asarray(rng.random((BATCH, TIME)) > 0.6)
    if resets == "given":
        call["reset_carry"] = random_like(rng, carry)
    return jnp.asarray(np.where(valid[:, :, None], inputs, np.nan)), call


@pytest.mark.parametrize(
    "row", by_level([(row,) for row in GRID], [(row,) for row in CHOSEN]), ids=str
)
def test_linear_loop_equals_the_plain_loop(row, rng, float64):
    name, reverse, lengths, mask, resets, padded, kept, memory, implementation = row
    case = ALL_CELLS[name]
    cell = case.make(param_dtype=float)
    fields = {"reverse": reverse, "padded_outputs": padded, kept: True}
    linear = rnncells.RNN(
        cell, implementation=implementation, memory=MEMORY[memory], **fields
    )
    plain = rnncells.RNN(cell, implementation="scan", **fields)
    sample = case.inputs(rng, BATCH)
    carry = random_like(rng, jax.eval_shape(cell.initialize_carry, None, sample))
    inputs, call = arguments_of(rng, case, lengths, mask, resets, carry)
    params = random_params(rng, plain, inputs)
    fixed = {k: v for k, v in call.items() if "carry" not in k}
    carried = {k: v for k, v in call.items() if "carry" in k}

    def run(rnn, params, inputs, carried):
        return rnn.apply(params, inputs, **fixed, **carried)

    found, expected = (
        values_and_gradients(partial(run, rnn), params, inputs, carried)
        for rnn in (linear, plain)
    )
    assert_close(found, expected, rtol=1e-11, atol=1e-11)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("solver", ["auto", "associative"])
def test_products_that_underflow_are_exact(solver, rng):
    """After 200 steps, products of a are 0, and so are some of a."""
    a, b = (
        values.astype(np.float32)
        for values in (rng.uniform(0, 0.5, (200, 4)), rng.standard_normal((200, 4)))
    )
    a[::7] = 0
    found = np.asarray(
        jax.jit(partial(solve_linear, solver=solver))(a, b, np.ones(4, np.float32))
    )
    c = np.ones(4)
    for t in range(200):
        c = a[t].astype(np.float64) * c + b[t]
        np.testing.assert_allclose(found[t], c, rtol=1e-5, atol=1e-6)


# The loop of matrices has one solver; that of a convolution must accept both names.
@pytest.mark.parametrize(
    "name, implementation",
    by_level(
        [*itertools.product(KINDS, ["auto", "associative"])],
        [("MinGRUCell", "associative"), ("LRUCell", "auto"), ("MLSTMCell", "auto")],
    ),
)
def test_infinity_does_not_cross_a_reset(name, implementation, rng):
    case = ALL_CELLS[name]
    rnn = rnncells.RNN(case.make(), implementation=implementation)
    inputs = case.inputs(rng, BATCH, TIME)
    params = random_params(rng, rnn, inputs)
    resets = jnp.zeros((BATCH, TIME), bool).at[:, 4].set(True)
    run = partial(jax.jit(rnn.apply), params, resets=resets)
    clean, spoiled = (
        np.asarray(run(x)) for x in (inputs, inputs.at[:, 2].set(jnp.nan))
    )
    assert np.isnan(spoiled[:, 2:4]).any()
    np.testing.assert_allclose(spoiled[:, 4:], clean[:, 4:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name, implementation",
    by_level(
        [*((name, "auto") for name in ALL_CELLS), ("GRUCell", "newton")],
        [
            *((name, "auto") for name in ("MinGRUCell", "CausalConvCell")),
            *((name, "auto") for name in ("MLSTMCell", "GatedDeltaNetCell")),
            ("GRUCell", "newton"),
        ],
    ),
)
def test_outputs_and_carries_do_not_depend_on_later_inputs(name, implementation, rng):
    """Also where later steps are NaN, or their products overflow."""
    case = ALL_CELLS[name]
    options = {"implementation": implementation, "return_all_carries": True}
    rnn = rnncells.RNN(case.make(), **options)
    inputs = case.inputs(rng, BATCH, TIME)
    params = random_params(rng, rnn, inputs)
    run = jax.jit(rnn.apply)
    clean = run(params, inputs)
    for later in (jnp.nan, 1e25):
        spoiled = run(params, inputs.at[1:, 5:].set(later))
        for actual, expected in zip(
            *map(jax.tree.leaves, (spoiled, clean)), strict=True
        ):
            assert_close(actual[:, :5], expected[:, :5], rtol=1e-5, atol=1e-6)
            assert_close(actual[0], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gate", by_level(["beta", "log_i"], ["beta"]))
def test_nonfinite_operands_of_matrix_states_spoil_only_later_steps(gate, rng):
    """Each row has one operand that is not finite at one step, the last row a state."""
    steps, held, reset_at = 6, 3, 4
    cases = [*itertools.product(range(5), (0, 2, held, 5), (np.nan, np.inf))]
    # The square of a key overflows.
    cases += [(1, t, 1e25) for t in (0, 2, held, 5) if gate == "beta"]
    rows = len(cases) + 3

    def draw(*shape):
        return jnp.asarray(rng.normal(size=(steps, rows, 2, *shape)), jnp.float32)

    clean = [draw(4), draw(4) / 2, draw(3), -abs(draw()), abs(draw())]
    if gate == "beta":  # Large values at step 4 are harmless until another one follows.
        clean[1] = clean[1].at[4, -3:-1].set(1e18)
        clean[0] = clean[0].at[2, -3].set(1e20)
    operands, is_valid = list(clean), np.full((steps, rows), True)
    if gate == "beta":  # k k k and q k overflow in one row, beta k k in the other.
        operands[1] = operands[1].at[5, -3].set(1e18)
        operands[4] = operands[4].at[5, -2].set(1e30)
        is_valid[5, -3:-1] = False
    for row, (operand, t, value) in enumerate(cases):
        operands[operand] = operands[operand].at[t, row].set(value)
        keeps_state = operand == 0 or t == held
        end = t + 1 if keeps_state else reset_at if t < reset_at else steps
        is_valid[t:end, row] = False
    is_valid[:reset_at, -1] = False
    S, S_reset = jnp.asarray(rng.normal(size=(2, rows, 2, 3, 4)), jnp.float32)
    m = None if gate == "beta" else jnp.zeros((rows, 2))
    clean_state, state = MatrixState(S, m), MatrixState(S.at[-1].set(jnp.inf), m)
    reset_state = MatrixState(S_reset, m)
    reset = jnp.zeros((steps, rows), bool).at[reset_at].set(True)
    update = jnp.ones((steps, rows), bool).at[held].set(False)

    @jax.jit
    def at_once(state, operands):
        updates = OuterUpdate(*operands[:4], **{gate: operands[4]})
        options = {"reset": reset, "update": update, "reset_state": reset_state}
        chunk = MatrixChunk(state, updates, **options)
        return *chunk.reads(), chunk.states().S

    reads, ms, states, current = [], [], [], state
    for t in range(steps):
        current = reset_state if t == reset_at else current
        update_t = OuterUpdate(*(x[t] for x in operands[:4]), **{gate: operands[4][t]})
        after = step(current, update_t)
        current = current if t == held else after
        reads.append(read(after.S, update_t.q))
        ms.append(after.m)
        states.append(current.S)
    actual_reads, actual_m, actual_states = at_once(state, operands)
    # The states do not read q, nor what a step that holds the state is given.
    assert_near = partial(assert_close, rtol=1e-4, atol=1e-4)
    assert_near(actual_reads[is_valid], np.stack(reads)[is_valid])
    has_state = is_valid.copy()
    for row, (operand, t, _) in enumerate(cases):
        has_state[t, row] |= operand == 0 or t == held
    assert_near(actual_states[has_state], np.stack(states)[has_state])
    assert not np.isfinite(actual_reads[~is_valid]).any()
    assert not np.isfinite(actual_states[~has_state]).all((1, 2, 3)).any()
    if gate == "log_i":
        assert_near(actual_m[is_valid], np.stack(ms)[is_valid])

    @jax.jit
    @partial(jax.grad, argnums=1)
    def gradient(state, operands):
        reads = at_once(state, operands)[0]
        return jnp.sum(jnp.where(is_valid[..., None, None], reads, 0))

    gradients = gradient(state, operands), gradient(clean_state, clean)
    for actual, expected in zip(*gradients, strict=True):
        assert_near(actual, expected)


each_kind = pytest.mark.parametrize("name", by_level(KINDS, [KINDS[0]]))


@each_kind
def test_jvp_vmap_and_second_derivatives(name, rng, float64):
    case = ALL_CELLS[name]
    cell = case.make(param_dtype=float)
    x, dx = (case.inputs(rng, 2, BATCH, TIME) for _ in range(2))
    params = random_params(rng, rnncells.RNN(cell), x[0])

    def results(implementation):
        rnn = rnncells.RNN(cell, implementation=implementation)

        def loss(x):
            return jnp.sum(jnp.sin(rnn.apply(params, x)))

        def all_of(x, dx):
            return jax.jvp(jax.value_and_grad(loss), (x,), (dx,))

        return jax.jit(jax.vmap(all_of))(x, dx)

    expected = results("scan")
    assert_close(results("associative"), expected, rtol=1e-10, atol=1e-11)


def test_truncated_gradient_of_a_linear_cell_runs_step_by_step(rng, float64):
    cell, x = rnncells.MinGRUCell(4, param_dtype=float), np.ones((BATCH, TIME, 3))
    options = {"gradient": rnncells.TruncatedBptt(3)}
    params = random_params(rng, rnncells.RNN(cell), x)

    def gradient(implementation):
        rnn = rnncells.RNN(cell, implementation=implementation, **options)
        return jax.jit(jax.grad(lambda p: jnp.sum(rnn.apply(p, x) ** 2)))(params)

    assert_close(gradient("auto"), gradient("scan"), rtol=1e-12, atol=1e-12)
