"""Contenders: compiled calls that wait for their results."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.sizes import Size

# A slow compilation is not repeated: its time varies little.
COMPILATIONS, ENOUGH_SECONDS = 3, 3


@dataclasses.dataclass(frozen=True)
class Contender:
    """A library's layer, ready to be timed.

    Attributes:
      name: name of the library.
      run: computes once, and returns when the result is ready.
      compile_seconds: median time to trace, lower and compile; None without XLA.
      temporary_bytes: memory of the compiled program, without arguments and results;
        None if unknown.
    """

    name: str
    run: Callable[[], Any]
    compile_seconds: float | None = None
    temporary_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library, and the function that makes its contenders.

    Attributes:
      name: name in `--peers` and in the tables.
      package: module that must be installed.
      cells: names of its cells.
      make: `make(cell, size, mode)` returns the contender.
    """

    name: str
    package: str
    cells: tuple[str, ...]
    make: Callable[[str, Size, str], Contender]


def make_inputs(size: Size) -> np.ndarray:
    """Returns float32 inputs of a size, time first; every call returns the same."""
    rng = np.random.default_rng(0)
    return rng.standard_normal(size.inputs_shape, dtype=np.float32)


def in_mode(apply: Callable, mode: str) -> Callable:
    """Returns the function to time, of parameters and inputs.

    Args:
      apply: `apply(params, inputs)` returns the outputs of the sequence.
      mode: `'forward'`, or `'gradient'` for the gradient of the sum of squared outputs
        by parameters and inputs.
    """
    if mode == "forward":
        return apply
    return jax.grad(lambda params, x: jnp.sum(apply(params, x) ** 2), argnums=(0, 1))


def compile_contender(name: str, function: Callable, *arguments: Any) -> Contender:
    """Compiles a JAX function and returns it as a contender.

    Args:
      name: name of the library.
      function: the function to compile.
      *arguments: its arguments.
    """
    seconds: list[float] = []
    while len(seconds) < COMPILATIONS and sum(seconds) < ENOUGH_SECONDS:
        # Otherwise later contenders would reuse traces of earlier ones.
        jax.clear_caches()
        start = time.perf_counter()
        compiled = jax.jit(function).lower(*arguments).compile()
        seconds.append(time.perf_counter() - start)
    memory = compiled.memory_analysis()
    return Contender(
        name,
        run=lambda: jax.block_until_ready(compiled(*arguments)),
        compile_seconds=statistics.median(seconds),
        temporary_bytes=None if memory is None else memory.temp_size_in_bytes,
    )
