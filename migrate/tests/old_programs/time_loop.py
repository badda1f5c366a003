"""A loop over time with lax.scan within a compact method."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Unrolled(nn.Module):
    num_units: int

    @nn.compact
    def __call__(self, inputs, initial_state=None):
        batch_size, length = inputs.shape[:2]
        cell = nn.OptimizedLSTMCell(name="cell")
        if initial_state is None:
            initial_state = nn.OptimizedLSTMCell.initialize_carry(
                jax.random.PRNGKey(0), (batch_size,), self.num_units
            )
        state = initial_state
        outputs = []
        for t in range(length):
            state, y = cell(state, inputs[:, t])
            outputs.append(y)
        return state, jnp.stack(outputs, 1)


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    return Unrolled(4).init_with_output(jax.random.PRNGKey(1), x)
