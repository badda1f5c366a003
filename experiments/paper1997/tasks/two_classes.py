"""Noise and signal on one line: Hochreiter and Schmidhuber, 1997, Experiment 3.

The two-sequence problem of Bengio, Simard and Frasconi (1994): the first numbers of a
sequence are 1 for one class and -1 for the other, all later numbers are noise. The
network outputs the class at the end of the sequence.
"""

import math

import jax
import jax.numpy as jnp

from experiments.paper1997.tasks.sequence import Sequence
from experiments.settings.tasks import TwoClasses


def inputs(options: TwoClasses) -> int:
    """Returns 1: signal and noise share a line."""
    return 1


def outputs(options: TwoClasses) -> int:
    """Returns 1: the class."""
    return 1


def longest(options: TwoClasses) -> int:
    """Returns the maximum number of steps."""
    return options.length + options.length // 10


def sample(options: TwoClasses, key: jax.Array) -> Sequence:
    """Returns a random sequence of numbers."""
    keys = jax.random.split(key, 4)
    steps = longest(options)
    length = jax.random.randint(keys[0], (), options.length, steps + 1)
    is_first = jax.random.bernoulli(keys[1])
    noise = math.sqrt(options.variance) * jax.random.normal(keys[2], (steps,))
    is_signal = jnp.arange(steps) < options.information
    signal = jnp.where(is_first, 1.0, -1.0)
    informed = signal + noise if options.noisy_signal else signal
    line = jnp.where(is_signal, informed, noise)
    truth = jnp.where(is_first, *options.targets)[None]
    target = truth
    if options.target_variance:
        deviation = math.sqrt(options.target_variance)
        target = truth + deviation * jax.random.normal(keys[3], (1,))
    return Sequence(line[:, None], length, target, truth)
