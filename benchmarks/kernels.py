"""Kernels and processor time of compiled gradients: `python -m benchmarks kernels`.

XLA on CPU compiles each kernel that differs from all others to an object of its own,
so the time to the first step follows their number.
"""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

import rnncells

BATCH, TIME, FEATURES, HEADS = 4, 64, 32, 4
ROUNDS = 3


def _flax_layers() -> nn.Module:
    def layer() -> nn.Module:
        return nn.RNN(nn.LSTMCell(FEATURES))

    return nn.Sequential([nn.Bidirectional(layer(), layer()) for _ in range(3)])


def _blocks(number: int) -> nn.Module:
    return rnncells.Stack([rnncells.XLSTMBlock(FEATURES) for _ in range(number)])


FLAX = {
    "LSTM": lambda: nn.RNN(nn.LSTMCell(FEATURES)),
    "LSTM, 3 bidirectional layers": _flax_layers,
    "GRU": lambda: nn.RNN(nn.GRUCell(FEATURES)),
}
# What makes a layer of ours, and the layer of Flax that it is compared with.
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "LSTM": (lambda: rnncells.RNN(rnncells.LSTMCell(FEATURES)), "LSTM"),
    "LSTM, 3 bidirectional layers": (
        lambda: rnncells.LSTM(FEATURES, num_layers=3, bidirectional=True),
        "LSTM, 3 bidirectional layers",
    ),
    "GRU": (lambda: rnncells.RNN(rnncells.GRUCell(FEATURES)), "GRU"),
    "minGRU": (lambda: rnncells.RNN(rnncells.MinGRUCell(FEATURES)), "GRU"),
    "sLSTM": (
        lambda: rnncells.RNN(rnncells.SLSTMCell(FEATURES, num_heads=HEADS)),
        "LSTM",
    ),
    "mLSTM": (
        lambda: rnncells.RNN(rnncells.MLSTMCell(FEATURES, num_heads=HEADS)),
        "GRU",
    ),
    "gated delta net": (
        lambda: rnncells.RNN(rnncells.GatedDeltaNetCell(FEATURES, num_heads=HEADS)),
        "GRU",
    ),
    "xLSTM block": (partial(_blocks, 1), "GRU"),
    "6 xLSTM blocks": (partial(_blocks, 6), "GRU"),
}


class Compilation(NamedTuple):
    kernels: int  # that differ
    seconds: float  # of the processor, to trace, lower and compile


def main() -> None:
    """Prints a table of all programs."""
    jax.config.update("jax_enable_compilation_cache", False)
    print("| gradient | kernels | seconds | Flax | kernels | seconds | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    flax = {name: measure(make()) for name, make in FLAX.items()}
    for name, (make, peer) in PROGRAMS.items():
        ours, theirs = measure(make()), flax[peer]
        numbers = f"{ours.kernels} | {ours.seconds:.2f}"
        others = f"{peer} | {theirs.kernels} | {theirs.seconds:.2f}"
        ratio = ours.seconds / theirs.seconds
        print(f"| {name} | {numbers} | {others} | {ratio:.2f} |", flush=True)


def measure(layer: nn.Module) -> Compilation:
    """Compiles the gradient of a layer several times, and takes the least time."""
    seconds = []
    for _ in range(ROUNDS):
        jax.clear_caches()
        start = time.process_time()
        lower_gradient(layer).compile()
        seconds.append(time.process_time() - start)
    return Compilation(count_kernels(layer), min(seconds))


def count_kernels(layer: nn.Module) -> int:
    """Returns the number of kernels that differ in the gradient of a layer."""
    with tempfile.TemporaryDirectory() as folder:
        lower_gradient(layer).compile(compiler_options={"xla_dump_to": folder})
        return sum(".obj-file." in name for name in os.listdir(folder))


def lower_gradient(layer: nn.Module) -> Any:
    """Lowers the gradient of the sum of a layer's outputs by its parameters."""

    def loss(params: Any, inputs: jax.Array) -> jax.Array:
        result = layer.apply(params, inputs)
        # `rnncells.LSTM` also returns its last carry.
        outputs = result[0] if isinstance(result, tuple) else result
        return jnp.sum(outputs)

    inputs = jnp.ones((BATCH, TIME, FEATURES))
    params = jax.eval_shape(layer.init, jax.random.key(0), inputs)
    return jax.jit(jax.grad(loss)).lower(params, inputs)
