"""Linear cells: the associative scan against loops, in time and memory.

    python -m benchmarks.parallel

writes the tables and the figure of docs/parallel.md. On a GPU, where `'auto'` is the
associative scan,

    python -m benchmarks.parallel docs/parallel-gpu.md

writes those of another page.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

import rnncells
from benchmarks.measure import describe_environment
from benchmarks.plot import Point, save_steps
from benchmarks.report import replace_between
from benchmarks.timing import interleave

PAGE = Path("docs/parallel.md")
FEATURES, ROUNDS = 32, 5
TIMES = (64, 256, 1024, 4096, 16384, 65536)
BATCHES = (1, 8, 32)
CELLS = {
    "MinGRUCell": rnncells.MinGRUCell(FEATURES),
    "LRUCell": rnncells.LRUCell(FEATURES),
    "MLSTMCell": rnncells.MLSTMCell(FEATURES, num_heads=4),
    "GatedDeltaNetCell": rnncells.GatedDeltaNetCell(FEATURES, num_heads=4),
}
MEMORY = {
    "step by step": {"implementation": "scan"},
    '"full"': {},
    '"recompute"': {"memory": "recompute"},
    '"sqrt"': {"memory": "sqrt"},
    "Chunk(64)": {"memory": rnncells.Chunk(64)},
}
MEMORY_SIZE = 4096, 8


class Measured(NamedTuple):
    """What was measured of a gradient.

    Attributes:
      seconds: median time.
      memory: temporaries of the compiled program, in bytes.
    """

    seconds: float
    memory: int


def measure(layers: dict[str, Any], time: int, batch: int) -> dict[str, Measured]:
    """Returns what was measured of the gradient of each layer, in one process.

    Args:
      layers: layers with the same parameters, by name.
      time: number of steps.
      batch: number of rows.
    """
    x = jax.random.normal(jax.random.key(1), (time, batch, FEATURES))
    first = next(iter(layers.values()))
    params = first.init(jax.random.key(0), x[:2])
    programs = {name: _compiled(layer, params, x) for name, layer in layers.items()}

    def run(program):
        return lambda: jax.block_until_ready(program(params, x))

    runs = {name: run(program) for name, program in programs.items()}
    times = interleave(runs, ROUNDS)
    return {
        name: Measured(
            statistics.median(times[name]),
            programs[name].memory_analysis().temp_size_in_bytes,
        )
        for name in layers
    }


def _compiled(layer: Any, params: Any, x: jax.Array) -> Callable:
    def gradient(params, x):
        return jax.grad(lambda params: (layer.apply(params, x) ** 2).sum())(params)

    return jax.jit(gradient).lower(params, x).compile()


Speed = dict[tuple[int, int], dict[str, Measured]]


def ways() -> dict[str, str]:
    """Returns what the tables call the values of `implementation`."""
    is_cpu = jax.default_backend() == "cpu"
    # Elsewhere, `'auto'` is the associative scan.
    in_a_loop = {"auto": "one line in a loop"} if is_cpu else {}
    return {"scan": "step by step", **in_a_loop, "associative": "associative scan"}


def measure_speed() -> Speed:
    """Returns what was measured of each way, by time and batch."""
    cell = CELLS["MinGRUCell"]
    layers = {
        way: rnncells.RNN(cell, implementation=way, time_major=True) for way in ways()
    }
    found = {}
    for batch in BATCHES:
        for time in TIMES:
            found[time, batch] = measure(layers, time, batch)
            print(time, batch, found[time, batch], flush=True)
    return found


def speed_table(found: Speed) -> Iterator[str]:
    """Yields the lines of the table of times and memory."""
    names = ways()
    heads = [f"{what}: {way}" for what in ("ms", "MiB") for way in names.values()]
    yield f"| batch | T | {' | '.join(heads)} |"
    yield "|--:|--:|" + "--:|" * len(heads)
    for (time, batch), measured in found.items():
        words = [f"{1e3 * measured[way].seconds:,.2f}" for way in names]
        words += [f"{measured[way].memory / 2**20:,.1f}" for way in names]
        yield f"| {batch} | {time:,} | {' | '.join(words)} |"


def memory_table() -> Iterator[str]:
    """Yields the lines of the table of memory policies."""
    heads = [f"{what}: {name}" for what in ("MiB", "ms") for name in MEMORY]
    yield f"| cell | {' | '.join(heads)} |"
    yield "|---|" + "--:|" * len(heads)
    for name, cell in CELLS.items():
        layers = {
            memory: rnncells.RNN(cell, time_major=True, **options)
            for memory, options in MEMORY.items()
        }
        found = measure(layers, *MEMORY_SIZE)
        words = [f"{m.memory / 2**20:,.1f}" for m in found.values()]
        words += [f"{1e3 * m.seconds:,.1f}" for m in found.values()]
        yield f"| `{name}` | {' | '.join(words)} |"


def lines_of(found: Speed) -> dict[int, dict[str, list[Point]]]:
    """Returns the points of the figure, by batch and by the name of the way."""
    return {
        batch: {
            label: [
                Point(time, *measured[way])
                for (time, of), measured in found.items()
                if of == batch
            ]
            for way, label in ways().items()
        }
        for batch in BATCHES
    }


def main(page: Path = PAGE) -> None:
    """Measures, and writes the tables and the figure.

    Args:
      page: file to write the tables into; the figure stands beside it.
    """
    environment = describe_environment()
    found, (time, batch) = measure_speed(), MEMORY_SIZE
    picture = page.with_suffix(".svg")
    save_steps(lines_of(found), picture)
    lines = [
        f"![Time and memory of a step]({picture.name})",
        "",
        f"The gradient of `MinGRUCell({FEATURES})`:",
        "",
        *speed_table(found),
        "",
        f"The gradient at T = {time:,}, with a batch of {batch}, by `memory`:",
        "",
        *memory_table(),
        "",
        f"{_processor(environment)}, jax {environment['versions']['jax']}, medians of "
        f"{ROUNDS} interleaved rounds.",
    ]
    page.write_text(replace_between(page.read_text(), "\n".join(lines)))
    print("\n".join(lines))


def _processor(environment: dict[str, Any]) -> str:
    cpu, device = environment["cpu"], environment["device"]
    where = f"{cpu['model']}, {cpu['count']} cores"
    return where if device == "cpu" else f"{device} ({where})"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
