"""Newton's method in time: its iterations, and its work against that of the loop.

    python -m benchmarks.newton

writes the tables of docs/newton.md. Nothing here is a time: a network is described by
its largest Lyapunov exponent, and work by sequential steps and by the floating-point
operations that XLA counts.
"""

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import rnncells
from benchmarks.report import replace_between
from rnncells import diagnostics
from rnncells.recurrence.newton import JacobianBlocks

PAGE = Path("docs/newton.md")
TIMES = (64, 256, 1024, 4096)
BATCH, FEATURES_IN, FEATURES = 4, 3, 16
GAINS = (1.5, 2, 2.5, 3, 4, 12)
MOST = 100
JACOBIANS = ("full", "diagonal")
CELL = rnncells.GRUCell(FEATURES)


def waves(key: jax.Array, time: int) -> jax.Array:
    """Returns sums of sines of random periods, `(batch, time, FEATURES_IN)`."""
    at_period, at_phase = jax.random.split(key)
    shape = BATCH, 1, FEATURES_IN
    period = jax.random.uniform(at_period, shape, minval=8.0, maxval=40.0)
    phase = jax.random.uniform(at_phase, shape, maxval=2 * jnp.pi)
    return jnp.sin(2 * jnp.pi * jnp.arange(time)[:, None] / period + phase)


def trained(time: int = 64, updates: int = 300) -> tuple[Any, float, float]:
    """Trains a GRU to predict the next values of waves.

    Args:
      time: steps of a sequence.
      updates: number of updates of Adam.

    Returns:
      The parameters of the layer, and the mean squared errors before and after.
    """
    rnn, x = rnncells.RNN(CELL), waves(jax.random.key(1), time + 1)
    params = rnn.init(jax.random.key(0), x), jnp.zeros((FEATURES, FEATURES_IN))
    adam = optax.adam(0.01)

    def loss(params):
        of_rnn, kernel = params
        return jnp.mean((rnn.apply(of_rnn, x[:, :-1]) @ kernel - x[:, 1:]) ** 2)

    def update(state, _):
        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params)
        change, moments = adam.update(gradient, moments)
        return (optax.apply_updates(params, change), moments), value

    state = params, adam.init(params)
    (params, _), losses = jax.jit(partial(jax.lax.scan, update, length=updates))(state)
    return params[0], float(losses[0]), float(losses[-1])


def networks() -> dict[str, Any]:
    """Returns the parameters of the networks, by their names in the table."""
    rnn = rnncells.RNN(CELL)
    untrained = rnn.init(jax.random.key(0), waves(jax.random.key(1), 2))
    found = {"untrained": untrained, "trained": trained()[0]}
    for gain in GAINS:
        found[f"untrained, recurrent weights times {gain}"] = scaled(untrained, gain)
    return found


def scaled(params: Any, gain: float) -> Any:
    """Returns parameters with the recurrent kernels multiplied by a number."""

    def change(path, leaf):
        names = [part.key for part in path]
        return gain * leaf if names[-2:] in RECURRENT else leaf

    return jax.tree.map_with_path(change, params)


RECURRENT = [[gate, "kernel"] for gate in ("hr", "hz", "hn")]


def exponent(params: Any) -> float:
    """Returns the largest Lyapunov exponent of a network, in nats per step."""
    x = waves(jax.random.key(2), TIMES[-1])
    record = partial(diagnostics.record, rnncells.RNN(CELL), jacobians=True)
    (steps,) = record(params, x).values()
    settled = steps.jacobians[:, TIMES[-1] // 8 :]
    return float(diagnostics.lyapunov_exponents(settled)[:, 0].max())


@cache
def solver(jacobian: str) -> Callable:
    """Returns the compiled layer that solves by Newton's method."""
    newton = rnncells.Newton(jacobian, iterations=MOST)
    rnn = rnncells.RNN(CELL, implementation=newton, return_certificate=True)
    return jax.jit(lambda params, x: rnn.apply(params, x)[1])


def iterations(params: Any, jacobian: str, time: int) -> int | None:
    """Returns the number of iterations; None where the loop ran instead."""
    certificate = solver(jacobian)(params, waves(jax.random.key(2), time))
    return int(certificate.iterations) if certificate.converged.all() else None


def iteration_table(found: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the table of iterations.

    Args:
      found: the parameters of the networks.
    """
    heads = [f"{jacobian}, T = {time}" for jacobian in JACOBIANS for time in TIMES]
    yield f"| GRU of {FEATURES} units | largest exponent | {' | '.join(heads)} |"
    yield "|---|--:|" + "--:|" * len(heads)
    exponents = {name: exponent(params) for name, params in found.items()}
    for name in sorted(found, key=exponents.__getitem__):
        params = found[name]
        counts = [
            iterations(params, kind, time) for kind in JACOBIANS for time in TIMES
        ]
        words = ["loop" if count is None else str(count) for count in counts]
        yield f"| {name} | {exponents[name]:.3f} | {' | '.join(words)} |"


def flops(function: Callable, *args: Any) -> float:
    """Returns the operations of a function without loops, as XLA counts them."""
    analysis = jax.jit(function).lower(*args).compile().cost_analysis()
    return analysis["flops"]


def work(params: Any, time: int, jacobian: str) -> float:
    """Returns the operations of one iteration, divided by those of the loop.

    An iteration takes all steps and their derivatives, one for each unit, and solves
    the linear recurrence of the Jacobians.
    """
    x = waves(jax.random.key(2), time).swapaxes(0, 1)
    s = jnp.ones((time, BATCH, FEATURES))
    of_cell = {"params": params["params"]["cell"]}

    def after(s):
        return jax.vmap(lambda s, x: CELL.apply(of_cell, s, x)[0])(s, x)

    size = FEATURES if jacobian == "full" else 1
    members = np.arange(FEATURES).reshape(-1, size)
    exists = np.ones((len(members), size, size), bool)
    blocks = JacobianBlocks(members, exists, np.arange(FEATURES))
    A = jnp.ones((time, BATCH, len(members), size, size))
    loop = flops(after, s)
    derivative = flops(lambda s: jax.jvp(after, (s,), (s,))[1], s)
    solution = flops(blocks.solve, A, s)
    return (loop + FEATURES * derivative + solution) / loop


def work_table(params: Any) -> Iterator[str]:
    """Yields the lines of the table of work.

    Args:
      params: the parameters of a network for which all lengths converge.
    """
    heads = ["sequential steps: loop", "full", "diagonal"]
    heads += ["operations: full", "diagonal"]
    yield f"| T | {' | '.join(heads)} |"
    yield "|--:|" + "--:|" * len(heads)
    for time in TIMES:
        counts = [iterations(params, kind, time) or time for kind in JACOBIANS]
        # All steps at once, the derivatives one after the other, and a scan up and
        # down a tree.
        depth = 1 + FEATURES + 2 * math.ceil(math.log2(time))
        steps = [f"{count * depth:,}" for count in counts]
        ratios = [
            f"{count * work(params, time, kind):,.0f}"
            for count, kind in zip(counts, JACOBIANS, strict=True)
        ]
        yield f"| {time} | {time:,} | {' | '.join(steps)} | {' | '.join(ratios)} |"


def main() -> None:
    """Counts, and writes the tables into the page."""
    found = networks()
    lines = [
        *iteration_table(found),
        "",
        "Work for the trained network; operations are multiples of the loop's.",
        "",
        *work_table(found["trained"]),
    ]
    PAGE.write_text(replace_between(PAGE.read_text(), "\n".join(lines)))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
