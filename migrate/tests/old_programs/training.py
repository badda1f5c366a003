"""A training step under jit, with an optimiser."""
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


class Regressor(nn.Module):
    hidden: int = 4

    @nn.compact
    def __call__(self, x):
        rnn = nn.RNN(nn.OptimizedLSTMCell(), cell_size=self.hidden, return_carry=True)
        carry, _ = rnn(x)
        return nn.Dense(1)(carry[1])[..., 0]


model = Regressor()


@jax.jit
def step(params, state, x, y):
    def loss(params):
        return jnp.mean((model.apply(params, x) - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    updates, state = optax.sgd(0.1).update(grads, state)
    return optax.apply_updates(params, updates), state, value


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    params = model.init(jax.random.PRNGKey(0), x)
    state = optax.sgd(0.1).init(params)
    losses = []
    trained = params
    for _ in range(3):
        trained, state, value = step(trained, state, x, jnp.ones(2))
        losses.append(value)
    return params, losses
