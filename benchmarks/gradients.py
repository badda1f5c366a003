"""Methods to form a gradient: their bias, their memory and their time.

    python -m benchmarks.gradients

writes the table of docs/gradients.md. The bias is the cosine of a gradient with the
exact one, at the initial parameters; for `Uoro`, the mean over some draws.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import rnncells
from benchmarks.measure import describe_environment
from benchmarks.report import replace_between
from benchmarks.timing import interleave

PAGE = Path("docs/gradients.md")
CELLS = {
    "LSTM": rnncells.LSTMCell,
    "GRU": rnncells.GRUCell,
    "Elman": rnncells.SimpleCell,
}
TIMES = (10, 100, 1000)
BATCH, FEATURES_IN, FEATURES = 4, 8, 16
WINDOW, DRAWS, ROUNDS = 10, 20, 5


class Measured(NamedTuple):
    """What was measured of a method.

    Attributes:
      cosine: of the gradient with the exact gradient.
      memory: temporaries of the compiled gradient, in bytes.
      seconds: median time of one step.
    """

    cosine: float
    memory: int
    seconds: float


def methods(cell: str) -> dict[str, rnncells.gradients.Gradient]:
    """Returns the methods that a cell has, by the names of the table."""
    found = {
        "Bptt()": rnncells.Bptt(),
        f"TruncatedBptt({WINDOW})": rnncells.TruncatedBptt(WINDOW),
        "Truncated1997()": rnncells.Truncated1997(),
        "Rtrl()": rnncells.Rtrl(),
        f"BlockRtrl({FEATURES})": rnncells.BlockRtrl(FEATURES),
        "SnAp(1)": rnncells.SnAp(1),
        "SnAp(2)": rnncells.SnAp(2),
        "Rflo()": rnncells.Rflo(),
        "Uoro()": rnncells.Uoro(),
    }
    if cell != "LSTM":
        del found["Truncated1997()"]
    return found


def measure(cell: str, time: int) -> dict[str, Measured]:
    """Returns what was measured of each method, for sequences of `time` steps."""
    runs, memory, gradients = {}, {}, {}
    # Time first, as the loop takes it: another order is one more copy.
    layer = rnncells.RNN(CELLS[cell](FEATURES), time_major=True)
    x = jax.random.normal(jax.random.key(1), (time, BATCH, FEATURES_IN))
    d_y = jax.random.normal(jax.random.key(2), (time, BATCH, FEATURES))
    params = layer.init(jax.random.key(0), x)
    for name, method in methods(cell).items():
        compiled = _compiled(layer.clone(gradient=method), params, x, d_y)
        memory[name] = compiled.memory_analysis().temp_size_in_bytes

        def run(compiled=compiled, number=0):
            key = jax.random.key(3 + number)
            return jax.block_until_ready(compiled(params, x, d_y, key))

        draws = DRAWS if name == "Uoro()" else 1
        gradients[name] = [_flat(run(number=number)) for number in range(draws)]
        runs[name] = run
    times = interleave(runs, ROUNDS)
    (exact,) = gradients["Bptt()"]
    return {
        name: Measured(
            statistics.mean(_cosine(found, exact) for found in gradients[name]),
            memory[name],
            statistics.median(times[name]) / time,
        )
        for name in runs
    }


def _compiled(layer: Any, params: Any, x: jax.Array, d_y: jax.Array) -> Callable:
    def gradient(params, x, d_y, key):
        run = partial(layer.apply, inputs=x, rngs={"uoro": key})
        _, vjp = jax.vjp(run, params)
        return vjp(d_y)[0]

    return jax.jit(gradient).lower(params, x, d_y, jax.random.key(3)).compile()


def _flat(tree: Any) -> np.ndarray:
    leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves).astype(np.float64)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def table() -> Iterator[str]:
    """Yields the lines of the table."""
    heads = [
        f"{what}, T = {time}" for what in ("cosine", "KiB", "µs") for time in TIMES
    ]
    yield f"| cell | method | {' | '.join(heads)} |"
    yield "|---|---|" + "--:|" * len(heads)
    for cell in CELLS:
        found = [measure(cell, time) for time in TIMES]
        for name in found[0]:
            own = [of_time[name] for of_time in found]
            words = [f"{m.cosine:.3f}" for m in own]
            words += [f"{m.memory / 1024:,.0f}" for m in own]
            words += [f"{1e6 * m.seconds:,.1f}" for m in own]
            yield f"| {cell} | `{name}` | {' | '.join(words)} |"


def main() -> None:
    """Measures, and writes the table into the page."""
    environment = describe_environment()
    cpu, jax_version = environment["cpu"], environment["versions"]["jax"]
    lines = [
        *table(),
        "",
        f"{cpu['model']}, {cpu['count']} cores, jax {jax_version}, medians of {ROUNDS} "
        "interleaved rounds.",
    ]
    PAGE.write_text(replace_between(PAGE.read_text(), "\n".join(lines)))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
