"""Flax NNX: a classifier of spoken vowels with dropout, trained and saved.

    python examples/nnx_training.py

The data are utterances of 7 to 29 frames by nine speakers (Japanese Vowels). The script
trains a bidirectional LSTM of `rnncells.nnx`, prints how many speakers of new
utterances it names correctly, and saves and restores the model with Orbax.
"""

import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

import rnncells.nnx as rnx

DATA = Path(__file__).resolve().parent.parent / "experiments" / "data"


class Classifier(nnx.Module):
    def __init__(self, features, *, rngs):
        self.lstm = rnx.LSTM(12, features, bidirectional=True, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.logits = nnx.Linear(2 * features, 9, rngs=rngs)

    def __call__(self, x, lengths):  # (batch, time, 12), (batch,)
        y, _ = self.lstm(x, seq_lengths=lengths)  # 0 at padded steps
        mean = y.sum(axis=1) / lengths[:, None]
        return self.logits(self.dropout(mean))


def read(part):
    """Returns padded utterances, their lengths, and their speakers."""
    with np.load(DATA / "japanese_vowels.npz") as data:
        frames, lengths, speakers = (data[f"{part}_{n}"] for n in ("x", "len", "y"))
    sequences = np.split(frames, np.cumsum(lengths[:-1], dtype=int))
    padded = [np.pad(s, ((0, 29 - len(s)), (0, 0))) for s in sequences]
    return jnp.array(padded), jnp.array(lengths, int), jnp.array(speakers, int)


@nnx.jit
def train_step(model, optimizer, x, lengths, speakers):
    def loss(model):
        logits = model(x, lengths)
        return optax.softmax_cross_entropy_with_integer_labels(logits, speakers).mean()

    value, gradient = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradient)
    return value


@nnx.jit
def accuracy(model, x, lengths, speakers):
    return jnp.mean(model(x, lengths).argmax(-1) == speakers)


def main(updates=400, features=32, batch=32):
    train, test = read("train"), read("test")
    model = Classifier(features, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(5e-3), wrt=nnx.Param)
    rng = np.random.default_rng(0)
    model.train()  # with dropout
    for step in range(updates):
        chosen = rng.choice(len(train[0]), batch, replace=False)
        value = train_step(model, optimizer, *(part[chosen] for part in train))
        if step % 100 == 0:
            print(f"update {step}: loss {value:.3f}")

    model.eval()  # without dropout
    before = float(accuracy(model, *test))
    print(f"accuracy on the test set: {before:.1%}")
    with tempfile.TemporaryDirectory() as folder:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(Path(folder) / "model", nnx.state(model))
            checkpointer.wait_until_finished()
            other = Classifier(features, rngs=nnx.Rngs(1))
            saved = checkpointer.restore(Path(folder) / "model", nnx.state(other))
    nnx.update(other, saved)
    other.eval()
    after = float(accuracy(other, *test))
    print(f"accuracy of the restored model:   {after:.1%}")
    return before, after


if __name__ == "__main__":
    main()
