"""The communication of every cell, and its table in docs/scaling.md.

This command writes the table:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python tests/collectives.py
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from cases import ALL_CELLS, WITH_PRODUCTS
from compiled import Instruction, Program
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnncells

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scaling.md"
BEGIN, END = "<!-- collectives: begin -->", "<!-- collectives: end -->"
# Rows are shared by two devices, features by four.
MESH = {"data": 2, "model": 4}
BATCH, TIME, FEATURES_IN = 6, 5, 3
# Numbers of units of the cells, which four divides.
SIZES = {"features": 16, "proj_features": 8, "blocks": 8, "block_size": 2}
IN_TABLE = [*WITH_PRODUCTS, "VariationalLSTMCell", "VariationalGRUCell", "ZoneoutCell"]


def mesh(**sizes: int) -> jax.sharding.Mesh:
    """Returns a mesh of devices with automatic sharding."""
    types = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types)


def layer_of(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Returns an RNN of a cell in `cases.py`, and the shape of its inputs."""
    case = ALL_CELLS[name]
    sizes = {k: n for k, n in SIZES.items() if k in case.options}
    options = {"param_dtype": jnp.result_type(float)}
    if name == "ZoneoutCell":
        cell = rnncells.ZoneoutCell(rnncells.LSTMCell(16, **options), **case.options)
    else:
        cell = case.make(**sizes, **options)
    shape = (BATCH, TIME, *case.input_shape[:-1], FEATURES_IN)
    return rnncells.RNN(cell, projection="whole"), shape


class Sharded(NamedTuple):
    """The value and the gradient of a layer, compiled for several devices."""

    places: tuple[Any, NamedSharding]  # of params and inputs
    compiled: jax.stages.Compiled
    program: Program


def value_and_grad(layer: nn.Module, **options: Any) -> Callable:
    """Returns `(params, inputs) -> ((loss, outputs), gradients)`."""

    def loss(params, inputs):
        outputs = layer.apply(params, inputs, **options)
        leaves = jax.tree.leaves(outputs)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in leaves), outputs

    return jax.value_and_grad(loss, (0, 1), has_aux=True)


def build(
    layer: nn.Module, shape: tuple[int, ...], devices: dict[str, int], **options: Any
) -> Sharded:
    """Compiles a layer whose features are sharded over the axis `model` of a mesh."""
    inputs = jax.ShapeDtypeStruct(shape, jnp.result_type(float))
    params = jax.eval_shape(layer.init, jax.random.key(0), inputs)
    on = mesh(**devices)
    rows = NamedSharding(on, PartitionSpec("data" if "data" in devices else None))
    shardings = NamedSharding(on, PartitionSpec())
    if "model" in devices:
        shardings = rnncells.feature_shardings(params, on, "model")
    function = value_and_grad(layer, **options)
    jitted = jax.jit(
        function,
        in_shardings=(shardings, rows),
        out_shardings=(None, (shardings, rows)),
    )
    compiled = jitted.lower(params, inputs).compile()
    return Sharded((shardings, rows), compiled, Program(compiled.as_text()))


def count(instructions: list[Instruction]) -> Counter:
    """Returns how many there are of each kind of collective."""
    return Counter(i.opcode.removesuffix("-start") for i in instructions)


def in_loops(program: Program) -> tuple[Counter, Counter]:
    """Returns the collectives of a step, forward and backward."""
    forward, backward = sorted(program.innermost, key=lambda loop: loop.is_transposed)
    assert (forward.is_transposed, backward.is_transposed) == (False, True)
    return count(forward.collectives), count(backward.collectives)


def row(name: str, program: Program) -> str:
    """Returns the row of the table on a cell."""
    forward, backward = map(_written, in_loops(program))
    return f"| `{name}` | {forward} | {backward} |"


def rows_of_page() -> dict[str, str]:
    """Returns the rows of the table in docs/scaling.md, by the name of the cell."""
    table = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return {line.split("`")[1]: line for line in rows}


def _written(counts: Counter) -> str:
    kinds = sorted(counts.items())
    return ", ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in kinds) or "none"


def main() -> None:
    """Writes the table."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    lines = ["| cell | step forward | step backward |", "|---|---|---|"]
    for name in IN_TABLE:
        lines.append(row(name, build(*layer_of(name), MESH).program))
    table = "\n".join(lines)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")


if __name__ == "__main__":
    main()
