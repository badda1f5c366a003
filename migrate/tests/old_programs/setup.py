"""Pattern 7: cells made in setup, the carry asked of the instance."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Policy(nn.Module):
    hidden_size: int
    num_actions: int = 3

    def setup(self):
        self.cell = nn.LSTMCell()
        self.head = nn.Dense(self.num_actions)

    def __call__(self, carry, obs):
        carry, y = self.cell(carry, obs)
        return carry, self.head(y)

    def initial_state(self, batch_size):
        return self.cell.initialize_carry(
            jax.random.PRNGKey(0), (batch_size,), self.hidden_size
        )


def run():
    policy = Policy(hidden_size=4)
    obs = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    key = jax.random.PRNGKey(0)
    state = nn.LSTMCell.initialize_carry(key, (2,), 4)
    params = policy.init(key, state, obs)
    first = policy.apply(params, 2, method=policy.initial_state)
    return params, first, policy.apply(params, first, obs)
