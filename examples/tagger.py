"""A tagger for sequences of different lengths, trained on packed batches.

    python examples/tagger.py

Each token gets a tag that depends on the tokens before and after it: whether the next
occurrence of token 0 is nearer than the last one. Sequences have 3 to 40 tokens.
Training packs several sequences into each row; evaluation pads them. The script prints
how many steps packing saves, that both give the same result, and the accuracy.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import rnncells
from rnncells import packing

TOKENS, LONGEST = 8, 40


class Tagger(nn.Module):
    features: int

    @nn.compact
    def __call__(self, tokens, **sequences):  # seq_lengths, or resets and mask
        x = nn.Embed(TOKENS, 16)(tokens)
        y, _ = rnncells.LSTM(self.features, bidirectional=True)(x, **sequences)
        return nn.Dense(2)(y)


def tags_of(tokens):
    """Returns 1 where the next token 0 is nearer than the last one, else 0."""
    zeros = np.flatnonzero(tokens == 0)
    tags = np.zeros(len(tokens), int)
    for t in range(len(tokens)):
        before = [t - z for z in zeros if z < t]
        after = [z - t for z in zeros if z > t]
        tags[t] = min(after, default=LONGEST) < min(before, default=LONGEST)
    return tags


def sentences(rng, count):
    """Returns lists of tokens and tags; most sequences are short."""
    lengths = 3 + (LONGEST - 3) * rng.beta(1, 3, count)
    tokens = [rng.integers(TOKENS, size=int(length)) for length in lengths]
    return tokens, [tags_of(sequence) for sequence in tokens]


def padded(sequences):
    return np.stack([np.pad(s, (0, LONGEST - len(s))) for s in sequences])


def losses(logits, tags, mask):
    values = optax.softmax_cross_entropy_with_integer_labels(logits, tags)
    return jnp.mean(values, where=mask)


def main(updates=300, features=32, batch=64, rows=24, test_count=200):
    rng = np.random.default_rng(0)
    model, optimizer = Tagger(features), optax.adam(5e-3)

    @jax.jit  # compiled once: all batches have rows of one length and count
    def train_step(params, state, tokens, tags, plan):
        def loss(params):
            logits = model.apply(params, tokens, resets=plan.resets, mask=plan.mask)
            return losses(logits, tags, plan.mask)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    params = state = None
    for step in range(updates):
        tokens, tags = sentences(rng, batch)
        plan = packing.plan([len(s) for s in tokens], row_length=LONGEST, rows=rows)
        inputs, targets = plan.pack(padded(tokens)), plan.pack(padded(tags))
        if params is None:
            params = model.init(jax.random.key(0), inputs)
            state = optimizer.init(params)
        params, state, value = train_step(params, state, inputs, targets, plan)
        if step % 100 == 0:
            print(f"update {step}: loss {value:.3f}")
    print(f"packed: {rows} rows of {LONGEST} steps; padded: {batch} rows")

    packed = model.apply(params, inputs, resets=plan.resets, mask=plan.mask)
    lengths = jnp.array([len(s) for s in tokens])
    one_each = model.apply(params, padded(tokens), seq_lengths=lengths)
    valid = jnp.arange(LONGEST) < lengths[:, None]
    difference = jnp.abs(plan.unpack(packed, time=LONGEST) - one_each)
    difference = float(jnp.max(difference, where=valid[..., None], initial=0))
    print(f"largest difference of packed and padded outputs: {difference:.1e}")

    tokens, tags = sentences(rng, test_count)
    lengths = jnp.array([len(s) for s in tokens])
    predicted = model.apply(params, padded(tokens), seq_lengths=lengths).argmax(-1)
    valid = jnp.arange(LONGEST) < lengths[:, None]
    accuracy = float(jnp.mean(predicted == padded(tags), where=valid))
    print(f"accuracy on new sequences: {accuracy:.1%}")
    return difference, accuracy


if __name__ == "__main__":
    main()
