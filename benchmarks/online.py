"""Online learning of the 1997 network: sequences per second with several methods.

Adding with T = 100 and ten trials, an update after each sequence. Run it with
`python -m benchmarks online`. It needs the extra `experiments`, and `torch` for
PyTorch's loop.
"""

import importlib.util
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnncells
from benchmarks.timing import interleave, spread
from experiments.paper1997.learners.network import (
    Network,
    Weights,
    errors,
    project,
    read_out,
    start,
    step,
)
from experiments.paper1997.learners.online import at_last_step, into_units
from experiments.paper1997.learners.published import PublishedLearner
from experiments.paper1997.tasks.sequence import Sequence
from experiments.paper1997.training.trainer import Trainer
from experiments.settings.config import Experiment
from experiments.settings.reading import config_path, read_config

COUNT, ROUNDS = 500, 7
# PyTorch's loop is hundreds of times slower.
TORCH_COUNT = 3


def measure() -> dict[str, float]:
    """Returns the median sequences per second, summed over all trials, by name."""
    config = read_config(config_path("adding-4-1"))
    learners = {
        "forward traces (ours)": PublishedLearner(config),
        "reverse cumulative sum": Otherwise(config, cumulative),
        "autodiff of the scan": Otherwise(config, differentiated),
    }
    sequences = COUNT * config.trials
    runs = {
        name: (_advance(Trainer(config, learner)), sequences)
        for name, learner in learners.items()
    }
    if importlib.util.find_spec("torch") is not None:
        runs["PyTorch, one sequence after the other"] = (_torch(), TORCH_COUNT)
    for run, _ in runs.values():
        run()
    times = interleave({name: run for name, (run, _) in runs.items()}, ROUNDS)
    return {name: runs[name][1] / spread(own).median for name, own in times.items()}


def main() -> None:
    """Prints the results of `measure`, and their ratios to ours."""
    began = time.monotonic()
    rates = measure()
    ours = next(iter(rates.values()))
    for name, rate in rates.items():
        print(f"{name:40}{rate:12,.0f} sequences/s{ours / rate:10.2f}x")
    print(f"{time.monotonic() - began:.0f} s")


def _advance(trainer: Trainer) -> Callable[[], Any]:
    def run():
        return jax.block_until_ready(trainer.advance(trainer.init(), 0, COUNT))

    return run


class Otherwise(PublishedLearner):
    """Our learner with another method for the gradient.

    Args:
      experiment: the config.
      by: `cumulative` or `differentiated`.
    """

    def __init__(self, experiment: Experiment, by: Callable):
        super().__init__(experiment)
        self.by = by

    def learn(self, w: Weights, sequence: Sequence) -> tuple[Weights, Any]:
        given = sequence.inputs, sequence.length, sequence.target
        return self.by(self.network, w, *given, self.learning.rate)


def cumulative(
    network: Network, w: Weights, inputs: Any, lengths: Any, target: Any, rate: float
) -> tuple[Weights, Any]:
    """Like `at_end` of the experiments, with one product for each weight at the end."""
    projected = project(network, w, inputs)
    trials = lengths.shape[-1]

    def body(state, now):
        t, z = now
        new = step(network, w, z, state)
        is_on = t < lengths
        gives = jnp.where(is_on, jnp.concatenate([new.by_gate, new.by_cell]), 0)
        kept = jax.tree.map(partial(jnp.where, is_on), new.state, state)
        last = new.y_out, new.slope_out
        return kept, (gives, state.y, last)

    first = start(network, trials, projected.dtype)
    state, (gives, sources, last) = jax.lax.scan(
        body, first, (jnp.arange(len(inputs)), projected)
    )
    y_out, slope_out = (at_last_step(leaf, lengths) for leaf in last)
    y_c = state.y[: network.cells]
    y, slope = read_out(network, w, y_c, at_last_step(inputs, lengths))
    now = step(network, w, projected[0], first)
    now = now._replace(state=state, y_out=y_out, slope_out=slope_out)
    e = errors(network, w, now, target - y, slope)
    # With an error only at the end, the sum from each step on is that error.
    is_last = jnp.arange(len(gives))[:, None, None] == lengths - 1
    by = into_units(network, e, gives, is_last)
    change = Weights(
        inputs=jnp.einsum("tik,tuk->iuk", inputs, by),
        hidden=jnp.einsum("tik,tuk->iuk", sources, by),
        bias=by.sum(0),
        outputs=e.k[:, None] * y_c,
        output_bias=e.k,
        direct=None,
    )
    return jax.tree.map(lambda leaf, d: leaf + rate * d, w, change), y


def differentiated(
    network: Network, w: Weights, inputs: Any, lengths: Any, target: Any, rate: float
) -> tuple[Weights, Any]:
    """Like `at_end` of the experiments, with LSTM1997Cell differentiated by JAX."""
    cell = rnncells.LSTM1997Cell(
        network.blocks, network.block_size, param_dtype=w.outputs.dtype
    )
    rnn = rnncells.RNN(cell, implementation="scan")

    def one(w, x, length, target):
        @partial(jax.grad, has_aux=True)
        def gradient(w):
            ends = np.cumsum([0, *network.widths.values()])
            params = {}
            for letter, first, last in zip("igo", ends[:-1], ends[1:], strict=True):
                params[f"i{letter}"] = {"kernel": w.inputs[:, first:last]}
                hidden = {"kernel": w.hidden[:, first:last], "bias": w.bias[first:last]}
                params[f"h{letter}"] = hidden
            y_c = rnn.apply({"params": {"cell": params}}, x)[length - 1]
            y = jax.nn.sigmoid(w.outputs @ y_c + w.output_bias)
            return 0.5 * jnp.sum((target - y) ** 2), y

        change, y = gradient(w)
        return jax.tree.map(lambda leaf, d: leaf - rate * d, w, change), y

    return jax.vmap(one, in_axes=-1, out_axes=-1)(w, inputs, lengths, target)


def _torch() -> Callable[[], Any]:
    """Returns a plain loop in PyTorch over the steps of one trial."""
    import torch

    torch.set_num_threads(1)
    blocks, size = 2, 2
    hidden = torch.nn.Linear(2 + blocks * (size + 2), blocks * (size + 2))
    output = torch.nn.Linear(blocks * size, 1)
    parameters = [*hidden.parameters(), *output.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    x = torch.rand(105, 2)

    def one():
        s, y = torch.zeros(blocks * size), torch.zeros(blocks * (size + 2))
        for x_t in x:
            net = hidden(torch.cat([x_t, y.detach()]))
            net_in, net_c, net_out = net.split([blocks, blocks * size, blocks])
            y_in, y_out = torch.sigmoid(net_in), torch.sigmoid(net_out)
            g = 4 * torch.sigmoid(net_c) - 2
            s = s + y_in.repeat_interleave(size) * g
            h = 2 * torch.sigmoid(s) - 1
            y_c = y_out.repeat_interleave(size) * h
            y = torch.cat([y_c, y_in, y_out])
        loss = 0.5 * (0.7 - torch.sigmoid(output(y_c))).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def run():
        for _ in range(TORCH_COUNT):
            one()

    return run
