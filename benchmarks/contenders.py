"""What is timed: calls that are compiled, and wait for their results."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.sizes import Size

COMPILATIONS = 3


@dataclasses.dataclass(frozen=True)
class Contender:
    """One library's layer, ready to be timed.

    Attributes:
      name: of the peer.
      run: computes once, and returns when the result is there.
      compile_seconds: median time to trace, lower and compile; None without XLA.
      temporary_bytes: memory that the compiled program takes beside its arguments and
        results; None if unknown.
    """

    name: str
    run: Callable[[], Any]
    compile_seconds: float | None = None
    temporary_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library, and how to make a contender of it.

    Attributes:
      name: what `--peers` and the tables call it.
      package: the module that must be there to import.
      cells: the cells that it has.
      make: `make(cell, size, mode)` returns the contender.
    """

    name: str
    package: str
    cells: tuple[str, ...]
    make: Callable[[str, Size, str], Contender]


def make_inputs(size: Size) -> np.ndarray:
    """Returns the inputs of a size, time first, the same in every call, in float32."""
    rng = np.random.default_rng(0)
    return rng.standard_normal(size.inputs_shape, dtype=np.float32)


def in_mode(apply: Callable, mode: str) -> Callable:
    """Returns the function of parameters and inputs that a mode times.

    Args:
      apply: `apply(params, inputs)` returns the outputs of the sequence.
      mode: `'forward'`, or `'gradient'`: of the sum of squared outputs, by parameters
        and inputs.
    """
    if mode == "forward":
        return apply
    return jax.grad(lambda params, x: jnp.sum(apply(params, x) ** 2), argnums=(0, 1))


def compile_contender(name: str, function: Callable, *arguments: Any) -> Contender:
    """Returns a function of JAX as a contender.

    Args:
      name: of the peer.
      function: what to compile.
      *arguments: what to call it with.
    """
    seconds = []
    for _ in range(COMPILATIONS):
        # Else what earlier contenders traced would be free for later ones.
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
