"""Pattern 18: a cell that is owned elsewhere."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Agent:
    def __init__(self, rnn_cell, rnn_size):
        self.rnn_cell = rnn_cell
        self.rnn_size = rnn_size

    def initial_state(self, rng):
        return self.rnn_cell.initialize_carry(rng, (1,), self.rnn_size)


def run():
    cell = nn.GRUCell()
    agent = Agent(cell, rnn_size=4)
    key = jax.random.PRNGKey(0)
    carry = agent.initial_state(key)
    x = jnp.sin(jnp.arange(3.0)).reshape(1, 3)
    return carry, cell.init_with_output(key, carry, x)
