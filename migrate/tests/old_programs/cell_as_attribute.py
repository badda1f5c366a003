"""Pattern 17: a cell that is held as an attribute, and owned elsewhere."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Agent:
    def __init__(self, rnn_size):
        self.rnn_size = rnn_size
        self.rnn_cell = nn.GRUCell()

    def initial_state(self, rng):
        return self.rnn_cell.initialize_carry(rng, (1,), self.rnn_size)


class Worker:
    def __init__(self, agent):
        self.rnn_cell = agent.rnn_cell
        self.state = self.rnn_cell.initialize_carry(
            jax.random.PRNGKey(0), (1,), agent.rnn_size
        )


def run():
    agent = Agent(rnn_size=4)
    key = jax.random.PRNGKey(0)
    carry = agent.initial_state(key)
    x = jnp.sin(jnp.arange(3.0)).reshape(1, 3)
    return Worker(agent).state, agent.rnn_cell.init_with_output(key, carry, x)
