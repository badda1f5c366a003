"""Predicting the next character of a text.

Training is stateful truncated backpropagation through time: each stream of a batch
reads its own part of the text, window after window, and its carry goes from one window
to the next. The gradient ends at the start of a window.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.datasets import text
from experiments.settings.supervised import Supervised
from experiments.supervised.network import (
    SequenceNetwork,
    dtype_of,
    initial_carry,
    rngs,
)
from experiments.supervised.task import Array, Examples, Task

# One stream has the lowest loss, because it never starts without a state; validation
# takes several for speed.
STREAMS = {"validation": 16, "test": 1}
STEPS = 1000


class CharLMTask(Task):
    """A language model of characters; see `Task`.

    Args:
      experiment: the config.

    Raises:
      ConfigError: the text cannot be read, or is too short.
    """

    def __init__(self, experiment: Supervised):
        self.options, self.batch_size = experiment.task, experiment.training.batch
        self.text, file = text_of(self.options.file), self.options.file
        self.origin = f"the text file {file}" if file else "the text of Shakespeare"
        self.identity = {"symbols": self.text.symbols, "sha256": self.text.sha256}
        parts = {split: self.text.part(split) for split in self.text.ranges}
        self.data = {split: part.codes for split, part in parts.items()}
        self.documents = {
            split: part.documents if self.options.documents else ()
            for split, part in parts.items()
        }
        symbols = len(self.text.symbols)
        self.model = network_of(experiment, symbols)
        self.carry_of = lambda batch: initial_carry(
            self.model, batch, experiment.model.embedding or symbols
        )
        # Raises an error if the text is too short; `text_file` checks the other splits.
        text.windows(len(self.data["train"]), self.batch_size, self.options.window)
        self.sample = jnp.zeros((self.batch_size, 1), jnp.int32)

    def initial_carry(self) -> Any:
        """Returns the carry of every stream before its first character."""
        return self.carry_of(self.batch_size)

    def batch(self, data: Any, key: Array, update: Array) -> text.Window:
        """Returns the next window of every stream, `(streams, window)`."""
        streams, steps = self.batch_size, self.options.window
        return text.window(
            data["train"], update, streams, steps, self.documents["train"]
        )

    def loss(
        self, params: Any, batch: text.Window, carry: Any, key: Array, update: Array
    ) -> tuple[Array, Any]:
        """Returns the mean loss in nats a character, and the carry of every stream."""
        carry, resets = self._restarted(carry, batch.resets)
        carry, logits = self.model.apply(
            {"params": params},
            batch.inputs,
            carry=carry,
            resets=resets,
            deterministic=False,
            rngs=rngs(key),
        )
        return jnp.mean(nats(logits, batch.targets)), carry

    def _restarted(self, carry: Any, resets: Array) -> tuple[Any, Array | None]:
        """Resets the carry where a stream starts again; returns the other resets."""
        if self.options.documents:
            return carry, resets
        is_new = resets[:, 0]
        initial = self.carry_of(len(resets))

        def restart(new, old):
            return jnp.where(is_new.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

        return jax.tree.map(restart, initial, carry), None

    def evaluate(self, params: Any, data: Any, split: str) -> dict[str, Array]:
        """Returns the loss in nats a character, and the number of characters."""
        codes, streams = data[split], STREAMS[split]
        count = text.evaluation_windows(len(codes), streams, STEPS)

        def add(state, n):
            carry, total = state
            window, mask = text.evaluation_window(
                codes, n, streams, STEPS, self.documents[split]
            )
            carry, resets = self._restarted(carry, window.resets)
            carry, logits = self.model.apply(
                {"params": params}, window.inputs, carry=carry, resets=resets
            )
            losses = nats(logits, window.targets)
            return (carry, total + jnp.sum(losses, where=mask)), None

        start = self.carry_of(streams), jnp.float32(0)
        (_, total), _ = jax.lax.scan(add, start, jnp.arange(count))
        characters = len(codes) - 1
        return {"loss": total / characters, "characters": jnp.int32(characters)}

    def examples(self, data: Any, count: int, steps: int) -> Examples:
        """Returns the first characters of the test split, cut into sequences.

        The loss is that of the character after each sequence.
        """
        codes = np.asarray(data["test"])
        count = min(count, len(codes) // 2)
        steps = min(steps, len(codes) // count - 1)
        rows = codes[: count * (steps + 1)].reshape(count, steps + 1)
        inputs, targets = rows[:, :-1], jnp.asarray(rows[:, -1])
        return Examples(
            inputs,
            lambda logits: jnp.sum(nats(logits[:, -1], targets)),
            symbols=[list(self.text.decode(row)) for row in inputs],
        )

    def together(self, splits: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Returns the loss on validation and test together, `both`."""
        counts = {split: of["characters"] for split, of in splits.items()}
        total = sum(counts.values())
        loss = sum(of["loss"] * counts[split] for split, of in splits.items()) / total
        return {"both": {"loss": loss, "characters": total}}


def network_of(experiment: Supervised, symbols: int) -> SequenceNetwork:
    """Returns the network of a config, for an alphabet of so many symbols."""
    return SequenceNetwork(
        experiment.model, symbols, symbols, dtype=dtype_of(experiment)
    )


def text_of(file: str) -> text.Text:
    """Returns the text of a config: that of a file, or Shakespeare's plays."""
    return text.text_file(file) if file else text.shakespeare()


def nats(logits: Array, targets: Array) -> Array:
    """Returns the cross-entropy of each target in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)
