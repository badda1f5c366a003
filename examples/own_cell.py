"""An own cell: a minimal gated cell in two methods, checked and trained.

    python examples/own_cell.py

The task is to add the two marked numbers of a sequence. The script prints the report of
`check_cell`, and the error during training; a constant guess has the error 1/6.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import rnncells


class ForgetCell(rnncells.RNNCellBase):
    """One gate f: h_t = f_t * h_{t-1} + (1 - f_t) * tanh(W_g x_t + U_g h_{t-1})."""

    features: int
    num_feature_dims = 1

    def carry_shape(self, input_shape):
        return (self.features,)

    def setup(self):
        self.gates("if", "ig", bias_init=rnncells.initializers.forget_gate(2.0))
        orthogonal = rnncells.initializers.orthogonal()
        self.gates("hf", "hg", kernel_init=orthogonal, use_bias=False)

    def project(self, inputs):
        """What needs only the inputs: computed for all steps at once."""
        return self.affine(inputs, "if", "ig")

    def recur(self, carry, projected):
        """What needs the carry: computed step by step."""
        a = projected + self.affine(carry, "hf", "hg")
        f, g = jnp.split(a, 2, axis=-1)
        f = nn.sigmoid(f)
        h = f * carry + (1 - f) * nn.tanh(g)
        return h, h


class Adder(nn.Module):
    cell: nn.Module

    @nn.compact
    def __call__(self, x):  # (batch, time, 2)
        _, h = rnncells.RNN(self.cell, return_carry=True)(x)
        return nn.Dense(1)(h[:, -1])[:, 0]


def sample(key, batch, time):
    """Returns numbers and marks of two of them, and the sum of the marked numbers."""
    numbers_key, first_key, second_key = jax.random.split(key, 3)
    numbers = jax.random.uniform(numbers_key, (batch, time))
    first = jax.random.randint(first_key, (batch,), 0, time // 2)
    second = jax.random.randint(second_key, (batch,), time // 2, time)
    marks = jax.nn.one_hot(first, time) + jax.nn.one_hot(second, time)
    return jnp.stack([numbers, marks], axis=-1), (numbers * marks).sum(-1)


def main(updates=600, features=32, batch=64, time=30):
    report = rnncells.check_cell(ForgetCell(4), (2, 3))  # (batch, features)
    print(report)
    assert report.ok

    model, optimizer = Adder(ForgetCell(features)), optax.adam(1e-2)

    @jax.jit
    def train_step(params, state, key):
        x, y = sample(key, batch, time)

        def loss(params):
            return jnp.mean((model.apply(params, x) - y) ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    keys = jax.random.split(jax.random.key(0), updates)
    params = model.init(jax.random.key(1), jnp.ones((1, time, 2)))
    state = optimizer.init(params)
    for step, key in enumerate(keys):
        params, state, value = train_step(params, state, key)
        if step % 100 == 0:
            print(f"update {step}: mean squared error {value:.4f}")
    x, y = sample(jax.random.key(2), 1000, time)
    error = float(jnp.mean((model.apply(params, x) - y) ** 2))
    print(f"mean squared error on new sequences: {error:.4f}")
    return report, error


if __name__ == "__main__":
    main()
