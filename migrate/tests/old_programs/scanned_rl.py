"""Pattern 6: the recurrent core of many reinforcement learning programs."""
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import constant, orthogonal


class ScannedRNN(nn.Module):
    @functools.partial(
        nn.scan,
        variable_broadcast="params",
        in_axes=0,
        out_axes=0,
        split_rngs={"params": False},
    )
    @nn.compact
    def __call__(self, carry, x):
        """Applies the module."""
        rnn_state = carry
        ins, resets = x
        rnn_state = jnp.where(
            resets[:, jnp.newaxis],
            self.initialize_carry(ins.shape[0], ins.shape[1]),
            rnn_state,
        )
        new_rnn_state, y = nn.GRUCell()(rnn_state, ins)
        return new_rnn_state, y

    @staticmethod
    def initialize_carry(batch_size, hidden_size):
        # Use a dummy key since the default state init fn is just zeros.
        return nn.GRUCell.initialize_carry(
            jax.random.PRNGKey(0), (batch_size,), hidden_size
        )


class ActorCritic(nn.Module):
    action_dim: int

    @nn.compact
    def __call__(self, hidden, x):
        obs, dones = x
        embedding = nn.Dense(8, kernel_init=orthogonal(2.0), bias_init=constant(0.1))
        embedding = nn.relu(embedding(obs))
        hidden, embedding = ScannedRNN()(hidden, (embedding, dones))
        logits = nn.Dense(self.action_dim)(embedding)
        value = nn.Dense(1)(embedding)
        return hidden, logits, jnp.squeeze(value, axis=-1)


def run():
    obs = jnp.sin(jnp.arange(5 * 2 * 3.0)).reshape(5, 2, 3)
    dones = jnp.arange(10).reshape(5, 2) % 4 == 3
    network = ActorCritic(action_dim=3)
    hidden = ScannedRNN.initialize_carry(2, 8)
    return network.init_with_output(jax.random.PRNGKey(1), hidden, (obs, dones))
