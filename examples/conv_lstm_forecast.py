"""A forecast of films: a ConvLSTM predicts the next frames of a bouncing ball.

    python examples/conv_lstm_forecast.py

The network reads 8 frames and then runs on its own predictions for 8 frames. The script
prints the squared error of its pixels next to that of repeating the last frame, and
draws the third predicted frame, next to the true one.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import rnncells

SIZE = 12


class Forecaster(nn.Module):
    features: int

    def setup(self):
        cell = rnncells.ConvLSTMCell(self.features, kernel_size=(3, 3))
        frame = nn.Conv(1, kernel_size=(1, 1))
        self.rnn = rnncells.RNN(rnncells.StackedCell([cell, frame]))

    def __call__(self, frames, steps):  # (batch, time, rows, columns, 1)
        """Returns logits of the frames after each given frame, and of `steps` more."""
        carry, seen = self.rnn(frames, return_carry=True)
        later = self.rnn.decode(
            nn.sigmoid(seen[:, -1]), steps, feed=nn.sigmoid, initial_carry=carry
        )
        return jnp.concatenate([seen, later], axis=1)


def films(key, count, steps):
    """Returns films of a ball that bounces off the walls, pixels in [0, 1]."""
    space = SIZE - 5
    phase = jax.random.randint(key, (count, 1, 2), 0, 2 * space)
    # A triangle wave goes back and forth, one pixel a step in each direction.
    path = (phase + jnp.arange(steps)[:, None]) % (2 * space)
    center = 2 + jnp.minimum(path, 2 * space - path)  # (count, steps, 2)
    pixels = jnp.arange(SIZE)
    rows = (pixels[:, None] - center[..., None, None, 0]) ** 2
    columns = (pixels - center[..., None, None, 1]) ** 2
    return jnp.exp(-(rows + columns) / 2)[..., None]


def main(updates=500, features=12, batch=16, given=8, steps=8):
    model, optimizer = Forecaster(features), optax.adam(1e-2)

    @jax.jit
    def train_step(params, state, key):
        film = films(key, batch, given + steps)

        def loss(params):
            logits = model.apply(params, film[:, :given], steps - 1)
            return optax.sigmoid_binary_cross_entropy(logits, film[:, 1:]).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    params = model.init(jax.random.key(0), jnp.ones((1, 2, SIZE, SIZE, 1)), 1)
    state = optimizer.init(params)
    for step, key in enumerate(jax.random.split(jax.random.key(2), updates)):
        params, state, value = train_step(params, state, key)
        if step % 100 == 0:
            print(f"update {step}: loss {value:.4f}")

    draw = jax.jit(films, static_argnums=(1, 2))
    film = draw(jax.random.key(3), 64, given + steps)
    logits = jax.jit(model.apply, static_argnums=2)(params, film[:, :given], steps - 1)
    predicted, truth = nn.sigmoid(logits[:, given - 1 :]), film[:, given:]
    error = float(jnp.mean((predicted - truth) ** 2))
    repeated = float(jnp.mean((film[:, given - 1 : given] - truth) ** 2))
    print(f"squared error: {error:.4f}; of repeating the last frame: {repeated:.4f}")
    for left, right in zip(truth[0, 2, ..., 0], predicted[0, 2, ..., 0]):
        print(
            "  ".join("".join(" .:*#"[int(4.99 * p)] for p in r) for r in (left, right))
        )
    return error, repeated


if __name__ == "__main__":
    main()
