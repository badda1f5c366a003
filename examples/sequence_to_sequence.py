"""Sequence to sequence: an encoder and a decoder that learn to reverse numbers.

    python examples/sequence_to_sequence.py

Training uses teacher forcing. The script then decodes greedily and with a beam search,
and prints the share of right answers and their mean log probability.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import rnncells

END, SYMBOLS, LONGEST = 0, 10, 8  # 0 starts and ends an answer


class Translator(nn.Module):
    features: int

    def setup(self):
        embed, logits = nn.Embed(SYMBOLS, 16), nn.Dense(SYMBOLS)
        cells = [rnncells.LSTMCell(self.features) for _ in range(2)]
        self.encoder = rnncells.RNN(rnncells.StackedCell([embed, cells[0]]))
        self.decoder = rnncells.RNN(rnncells.StackedCell([embed, cells[1], logits]))

    def __call__(self, tokens, lengths, answers):
        """Returns logits with teacher forcing: each step sees the answer before it."""
        carry, first = self.encode(tokens, lengths)
        return self.decoder.decode(first, targets=answers, initial_carry=carry)

    def encode(self, tokens, lengths):
        carry, _ = self.encoder(tokens, seq_lengths=lengths, return_carry=True)
        return carry, jnp.full(tokens.shape[:1], END)

    def greedy(self, tokens, lengths):
        """Returns answers of the likeliest token at each step."""
        carry, first = self.encode(tokens, lengths)
        options = {"feed": lambda x: x.argmax(-1), "return_inputs": True}
        options |= {"initial_carry": carry, "steps": LONGEST + 1}
        return self.decoder.decode(first, **options)[1]

    def beam(self, tokens, lengths, size):
        """Returns the best of `size` answers that are extended side by side."""
        carry, first = self.encode(tokens, lengths)
        repeat = jax.vmap(lambda leaf: jnp.stack([leaf] * size))  # (batch, size, ...)
        carry, token = jax.tree.map(repeat, (carry, first))
        scores = jnp.full(token.shape, -jnp.inf).at[:, 0].set(0.0)
        answers = jnp.zeros((*token.shape, LONGEST + 1), int)
        is_over = jnp.zeros(token.shape, bool)
        for t in range(LONGEST + 1):
            carry, logits = self.decoder.step(carry, token)
            # An answer that is over is extended by END alone.
            at_end = jnp.where(jnp.arange(SYMBOLS) == END, 0.0, -jnp.inf)
            added = jnp.where(is_over[..., None], at_end, nn.log_softmax(logits))
            total = (scores[..., None] + added).reshape(len(tokens), -1)
            scores, chosen = jax.lax.top_k(total, size)
            token, parents = chosen % SYMBOLS, chosen // SYMBOLS
            carry, answers, is_over = jax.tree.map(
                lambda leaf: jax.vmap(lambda row, parent: row[parent])(leaf, parents),
                (carry, answers, is_over),
            )
            answers, is_over = answers.at[:, :, t].set(token), is_over | (token == END)
        return answers[:, 0]


def sample(rng, batch):
    """Returns numbers with 3 to 8 digits, their lengths, and the reversed numbers."""
    lengths = rng.integers(3, LONGEST + 1, batch)
    is_valid = np.arange(LONGEST) < lengths[:, None]
    tokens = np.where(is_valid, rng.integers(1, SYMBOLS, (batch, LONGEST)), END)
    rows = [np.trim_zeros(row)[::-1] for row in tokens]
    answers = [np.pad(row, (0, LONGEST + 1 - len(row))) for row in rows]
    return tokens, lengths, np.stack(answers)


def log_probability(logits, answers):
    """Returns the log probability of each answer, up to its first END."""
    values = -optax.softmax_cross_entropy_with_integer_labels(logits, answers)
    is_part = jnp.cumsum(answers == END, axis=-1) - (answers == END) == 0
    return jnp.sum(values, axis=-1, where=is_part)


def main(updates=400, features=96, batch=128, test_count=500, beam_size=4):
    rng, model = np.random.default_rng(0), Translator(features)
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, updates))

    @jax.jit
    def train_step(params, state, tokens, lengths, answers):
        def loss(params):
            logits = model.apply(params, tokens, lengths, answers)
            return -jnp.mean(log_probability(logits, answers))

        value, gradient = jax.value_and_grad(loss)(params)
        change, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, change), state, value

    params = model.init(jax.random.key(0), *sample(rng, 2))
    state = optimizer.init(params)
    for _ in range(updates):
        params, state, value = train_step(params, state, *sample(rng, batch))
    print(f"loss after {updates} updates: {value:.3f}")

    tokens, lengths, expected = sample(rng, test_count)
    results = {}
    for name, options in {"greedy": {}, "beam": {"size": beam_size}}.items():
        answers = model.apply(params, tokens, lengths, **options, method=name)
        logits = model.apply(params, tokens, lengths, answers)
        score = float(log_probability(logits, answers).mean())
        right = float((answers == expected).all(-1).mean())
        print(f"{name}: {right:.1%} right, mean log probability {score:.3f}")
        results[name] = right, score
    return results


if __name__ == "__main__":
    main()
