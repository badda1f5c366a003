"""PyTorch, on the kind of device that JAX runs on."""

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import jax

from benchmarks.contenders import Contender, make_inputs
from benchmarks.sizes import Size


def make_torch(cell: str, size: Size, mode: str) -> Contender:
    """Returns a layer of PyTorch as a contender.

    On a CPU it uses one thread or one for each core, whichever is faster.
    """
    # Otherwise its threads spin after their work and slow down the next contender.
    # PyTorch reads this variable when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    device = _device(torch)
    options = {"dtype": getattr(torch, size.dtype), "device": device}
    layer = getattr(torch.nn, cell)(size.features_in, size.features, **options)
    inputs = torch.from_numpy(make_inputs(size)).to(**options)
    inputs.requires_grad_(mode == "gradient")

    def forward():
        with torch.inference_mode():
            return _finished(torch, layer(inputs)[0])

    def gradient():
        loss = (layer(inputs)[0] ** 2).sum()
        by = [*layer.parameters(), inputs]
        return _finished(torch, torch.autograd.grad(loss, by))

    run = forward if mode == "forward" else gradient
    if device == "cpu":
        _choose_threads(torch, run)
    return Contender("torch", run)


def _device(torch: Any) -> str:
    if jax.default_backend() == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise RuntimeError("this build of PyTorch does not support the GPU")
    return "cuda"


def _choose_threads(torch: Any, run: Callable[[], Any]) -> None:
    def seconds(threads):
        torch.set_num_threads(threads)
        run()
        ends = [time.perf_counter()]
        for _ in range(3):
            run()
            ends.append(time.perf_counter())
        # The minimum, because other work on the machine only adds time.
        return min(end - start for start, end in itertools.pairwise(ends))

    torch.set_num_threads(min((1, os.cpu_count()), key=seconds))


def _finished(torch: Any, result: Any) -> Any:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result
