"""The way of a call through the library, counted: `python -m benchmarks walk`.

Counts the files and functions of rnncells that run while a layer is traced, and how
often one function calls another in another file.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import rnncells

ROOT = str(Path(rnncells.__file__).parent)


class Walk(NamedTuple):
    files: int
    functions: int
    moves: int  # from a function to the next one that starts, in another file


def main() -> None:
    """Prints the walk of `RNN(LSTMCell(8))` with lengths, and of its gradient."""
    rnn = rnncells.RNN(rnncells.LSTMCell(8))
    inputs, lengths = jnp.ones((2, 5, 3)), jnp.array([5, 2])
    params = rnn.init(jax.random.key(0), inputs)

    def loss(params: Any) -> Any:
        return rnn.apply(params, inputs, seq_lengths=lengths).sum()

    for name, function in {"values": loss, "gradient": jax.grad(loss)}.items():
        walk = count(jax.make_jaxpr(function), params)
        print(f"{name}: {walk.files} files, {walk.functions} functions, ", end="")
        print(f"{walk.moves} moves between files")


def count(function: Callable, *args: Any) -> Walk:
    """Returns the walk of a call."""
    calls: list[tuple[str, str]] = []

    def record(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            calls.append((code.co_filename, code.co_qualname))

    sys.setprofile(record)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    files = [file for file, _ in calls]
    moves = 1 + sum(a != b for a, b in zip(files, files[1:]))
    return Walk(len(set(files)), len(set(calls)), moves)
