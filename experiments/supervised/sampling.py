"""Draws text from a trained language model, one character at a time.

The prompt runs through the sequence call of the network. Then one compiled loop draws a
character, feeds it to `step`, and so on, with the same parameters.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.datasets.text import decode, encode
from experiments.runs.folder import DATA, read_json
from experiments.settings.data_tasks import CharLM
from experiments.settings.options import Sample
from experiments.settings.rules import ConfigError
from experiments.settings.supervised import Supervised
from experiments.supervised.network import SequenceNetwork
from experiments.supervised.task import Array
from experiments.supervised.tasks.char_lm import network_of, text_of
from experiments.supervised.trained import check_params, read_params, read_run

# Characters of one compiled call, which are printed together.
CHUNK = 32
# Smaller temperatures are 0 on the device: the smallest normal number of float32.
SMALLEST = float(jnp.finfo(jnp.float32).tiny)


class LanguageModel(NamedTuple):
    """A trained language model.

    Attributes:
      network: the network.
      params: its parameters.
      symbols: the alphabet of the text that it was trained on.
    """

    network: SequenceNetwork
    params: Any
    symbols: str


class Drawn(NamedTuple):
    """The state between two characters.

    Attributes:
      carry: carry of the network.
      logits: logits of the next character, `(symbols,)`.
      key: random key of the next character.
    """

    carry: Any
    logits: Array
    key: Array


class Sampler:
    """Draws characters from a network.

    Args:
      model: the `SequenceNetwork` of a language model.
      params: its parameters.
      temperature: divides the logits, at least 0; 0 always takes the likeliest
        character.
      top_p: draws from the smallest set of characters whose probabilities have at least
        this sum, in (0, 1] (Holtzman et al., 2020).
    """

    def __init__(
        self, model: Any, params: Any, temperature: float = 1.0, top_p: float = 1.0
    ):
        self.model, self.params = model, params
        self.temperature, self.top_p = temperature, top_p

    def start(self, prompt: Array, key: Array) -> Drawn:
        """Returns the state after a prompt `(characters,)`, at least one character."""
        variables = {"params": self.params}
        carry, logits = jax.jit(self.model.apply)(variables, jnp.asarray(prompt)[None])
        return Drawn(carry, logits[0, -1], key)

    @partial(jax.jit, static_argnums=(0, 3))
    def _draw(self, params: Any, drawn: Drawn, count: int) -> tuple[Drawn, Array]:
        def one(drawn: Drawn, _: None) -> tuple[Drawn, Array]:
            key, now = jax.random.split(drawn.key)
            code = self.choose(now, drawn.logits)
            carry, logits = self.model.apply(
                {"params": params}, drawn.carry, code[None], method="step"
            )
            return Drawn(carry, logits[0], key), code

        return jax.lax.scan(one, drawn, length=count)

    def draw(self, drawn: Drawn, count: int) -> tuple[Drawn, Array]:
        """Draws characters; returns the state after them and the codes, `(count,)`."""
        return self._draw(self.params, drawn, count)

    def choose(self, key: Array, logits: Array) -> Array:
        """Draws the code of one character from logits `(symbols,)`."""
        if self.temperature < SMALLEST:
            return logits.argmax()
        # The largest becomes 0: a small temperature must not make it infinite.
        logits = (logits - logits.max()) / self.temperature
        return jax.random.categorical(key, nucleus(logits, self.top_p))


def nucleus(logits: Array, top_p: float) -> Array:
    """Returns logits, -inf outside of the smallest set with probability `top_p`.

    >>> nucleus(jnp.log(jnp.array([0.1, 0.6, 0.3])), 0.8)[0]
    Array(-inf, dtype=float32)
    """
    if top_p == 1:
        return logits
    order = jnp.argsort(-logits)
    probabilities = jax.nn.softmax(logits)[order]
    before = jnp.cumsum(probabilities) - probabilities
    # The likeliest symbol is in the set, also if `top_p` is 0 in float32.
    is_among = (before < top_p).at[0].set(True)
    is_in = jnp.zeros(logits.shape, bool).at[order].set(is_among)
    return jnp.where(is_in, logits, -jnp.inf)


def load(folder: Path, network: int = 0) -> LanguageModel:
    """Returns one network of a finished run.

    Args:
      folder: folder of the run.
      network: number of the network, in [0, seeds).

    Raises:
      ConfigError: the folder has no finished run of a language model, a file is
        damaged, or there is no network of this number.
    """
    experiment = read_run(folder, "sample", "run of a language model")
    is_model = isinstance(experiment, Supervised)
    if not is_model or not isinstance(experiment.task, CharLM):
        raise ConfigError(
            f"`sample` needs a language model, got a run of `{experiment.task.name}` "
            f"in `{folder}`."
        )
    params, symbols = read_params(folder, network, experiment.seeds), _symbols(folder)
    if symbols is None:
        symbols = text_of(experiment.task.file).symbols
    outputs = np.size(params.get("dense", {}).get("bias", ()))
    if len(symbols) != outputs:
        raise ConfigError(
            f"the network in `{folder}` has {outputs} symbols, but its alphabet has "
            f"{len(symbols)}: {folder / DATA} is missing or damaged, or the text has "
            "changed."
        )
    model = network_of(experiment, outputs)
    check_params(folder, model, jnp.zeros((1, 1), jnp.int32), params)
    return LanguageModel(model, params, symbols)


def _symbols(folder: Path) -> str | None:
    """Returns the alphabet of a run; None for runs that did not store it."""
    path = folder / DATA
    if not path.is_file():
        return None
    found = read_json(path)
    symbols = found.get("symbols") if isinstance(found, dict) else None
    if not isinstance(symbols, str) or sorted(set(symbols)) != list(symbols):
        raise ConfigError(
            f"{path} is damaged: `symbols` must be a sorted string without repetition."
        )
    return symbols


def print_sample(folder: Path, options: Sample) -> None:
    """Prints the prompt and the characters that a model draws, as they are drawn.

    Args:
      folder: folder of a finished run.
      options: the options of the command line.

    Raises:
      ConfigError: see `load`; or the prompt has a character that the text of the run
        does not have.
    """
    network, params, symbols = load(folder, options.network)
    prompt = options.prompt or ("\n" if "\n" in symbols else symbols[0])
    codes = encode(prompt, symbols)
    sampler = Sampler(network, params, options.temperature, options.top_p)
    print(prompt, end="", flush=True)
    for drawn in stream(sampler, codes, options.characters, options.seed):
        print(decode(drawn, symbols), end="", flush=True)
    print()


def stream(
    sampler: Sampler, prompt: np.ndarray, characters: int, seed: int
) -> Iterator[np.ndarray]:
    """Yields the codes of characters as they are drawn, at most `CHUNK` at a time."""
    drawn = sampler.start(prompt, jax.random.key(seed))
    for start in range(0, characters, CHUNK):
        drawn, codes = sampler.draw(drawn, CHUNK)
        yield np.asarray(codes)[: characters - start]
