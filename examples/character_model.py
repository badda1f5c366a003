"""A language model of characters: trains an LSTM on Shakespeare and writes a text.

    python examples/character_model.py

It prints the loss on text that it has not seen, in nats a character, and a sample. The
states of the LSTM are carried from one window of the text to the next.
"""

import lzma
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import rnncells

DATA = Path(__file__).resolve().parent.parent / "experiments" / "data"


class CharacterModel(nn.Module):
    symbols: int
    features: int

    def setup(self):
        self.embed = nn.Embed(self.symbols, self.features)
        self.lstm = rnncells.LSTM(self.features, num_layers=2)
        self.logits = nn.Dense(self.symbols)

    def __call__(self, tokens, states=None):  # (batch, time)
        outputs, states = self.lstm(self.embed(tokens), states)
        return self.logits(outputs), states

    def step(self, states, token):  # (batch,)
        states, output = self.lstm.step(states, self.embed(token))
        return states, self.logits(output)


def read_text():
    """Returns the training and validation parts of the text, and its symbols."""
    with lzma.open(DATA / "shakespeare9.txt.xz", "rt", encoding="ascii") as file:
        text = file.read()[:1_062_000]
    symbols = sorted(set(text))
    tokens = np.searchsorted(symbols, list(text))
    return tokens[:1_006_000], tokens[1_006_000:], symbols


def windows(tokens, batch, time):
    """Cuts a text into `batch` rows; returns inputs and targets, one window a step."""
    count = (len(tokens) - 1) // (batch * time)

    def cut(tokens):  # (count, batch, time)
        rows = tokens[: count * batch * time].reshape(batch, count, time)
        return jnp.asarray(rows.swapaxes(0, 1))

    return cut(tokens[:-1]), cut(tokens[1:])


def main(updates=400, features=128, batch=32, time=64, valid_windows=8, sample=300):
    train, valid, symbols = read_text()
    inputs, targets = windows(train, batch, time)
    model = CharacterModel(len(symbols), features)
    params = model.init(jax.random.key(0), inputs[0])
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(4e-3))

    def loss(params, states, x, y):
        logits, states = model.apply(params, x, states)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return losses.mean(), states

    @jax.jit
    def train_step(params, opt_state, states, x, y):
        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, states), grads = gradient(params, states, x, y)
        change, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, change), opt_state, states, value

    opt_state, states = optimizer.init(params), None
    for step in range(updates):
        k = step % len(inputs)
        states = None if k == 0 else states  # the text starts again
        params, opt_state, states, value = train_step(
            params, opt_state, states, inputs[k], targets[k]
        )
        if step % 100 == 0:
            print(f"update {step}: training loss {value:.3f}")

    evaluate, total, states = jax.jit(loss), 0.0, None
    for x, y in zip(*windows(valid[: batch * time * valid_windows + 1], batch, time)):
        value, states = evaluate(params, states, x, y)
        total += float(value) / valid_windows
    print(f"validation loss: {total:.3f} nats a character")
    text = write(model, params, symbols, sample)
    print(text)
    return total, text


def write(model, params, symbols, length, temperature=0.8):
    """Samples a text, one character a step."""

    def step(state, key):
        states, token = state
        states, logits = model.apply(params, states, token, method="step")
        token = jax.random.categorical(key, logits / temperature)
        return (states, token), token[0]

    first = jnp.array([symbols.index("\n")])
    states, _ = model.apply(params, None, first, method="step")
    keys = jax.random.split(jax.random.key(1), length)
    _, tokens = jax.lax.scan(step, (states, first), keys)
    return "".join(symbols[token] for token in tokens)


if __name__ == "__main__":
    main()
