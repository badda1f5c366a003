"""Mixed precision: steps in bfloat16, parameters and carries in float32.

    python examples/mixed_precision.py

The task is to remember which of 8 symbols came first in 60 steps of noise. The script
trains twice, prints both losses, and shows which arrays have which dtype. On GPU and
TPU, bfloat16 is faster. On CPU, the script only shows that training works in both
precisions.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import rnncells

SYMBOLS = 8


class Classifier(nn.Module):
    features: int
    dtype: jnp.dtype | None

    @nn.compact
    def __call__(self, x):  # (batch, time, SYMBOLS)
        # `dtype` is that of the computation; `param_dtype` stays float32, and so does
        # the carry, so that rounding errors do not add up over the steps.
        lstm = rnncells.LSTM(
            self.features,
            dtype=self.dtype,
            bias_init=rnncells.initializers.chrono(60),
        )
        _, states = lstm(x)
        logits = nn.Dense(SYMBOLS, dtype=self.dtype)(states.h[-1])
        return logits.astype(jnp.float32), states  # the loss is in float32


def sample(key, batch, time):
    """Returns noise after a first symbol, and that symbol."""
    symbol_key, noise_key = jax.random.split(key)
    symbols = jax.random.randint(symbol_key, (batch,), 0, SYMBOLS)
    noise = 0.1 * jax.random.normal(noise_key, (batch, time, SYMBOLS))
    return noise.at[:, 0].set(jax.nn.one_hot(symbols, SYMBOLS)), symbols


def train(dtype, updates, features, batch, time):
    """Returns the mean loss of the last 10 updates, the gradients and the states."""
    model, optimizer = Classifier(features, dtype), optax.adam(5e-3)

    def loss(params, key):
        x, symbols = sample(key, batch, time)
        logits, states = model.apply(params, x)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, symbols)
        return losses.mean(), states

    @jax.jit
    def train_step(params, state, key):
        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, states), grads = gradient(params, key)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value, grads, states

    params = model.init(jax.random.key(0), jnp.ones((1, time, SYMBOLS)))
    state, losses = optimizer.init(params), []
    for key in jax.random.split(jax.random.key(2), updates):
        params, state, value, grads, states = train_step(params, state, key)
        losses.append(float(value))
    return sum(losses[-10:]) / len(losses[-10:]), grads, states


def main(updates=400, features=32, batch=64, time=60):
    losses = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        name = jnp.dtype(dtype).name
        losses[name], grads, states = train(dtype, updates, features, batch, time)
        print(f"{name}: loss {losses[name]:.4f} (a guess: 2.08)")
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves((grads, states))}
    print("gradients and states of the bfloat16 model:", *dtypes)
    return losses, dtypes


if __name__ == "__main__":
    main()
