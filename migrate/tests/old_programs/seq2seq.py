"""An encoder and a decoder, in the way of Flax's example."""
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp


class EncoderLSTM(nn.Module):
    """Applies an LSTM, and stops at the end of each row."""

    @functools.partial(
        nn.scan,
        variable_broadcast="params",
        in_axes=1,
        out_axes=1,
        split_rngs={"params": False},
    )
    @nn.compact
    def __call__(self, carry, x):
        lstm_state, is_eos = carry
        new_lstm_state, y = nn.LSTMCell()(lstm_state, x)

        def select_carried_state(new_state, old_state):
            return jnp.where(is_eos[:, jnp.newaxis], old_state, new_state)

        carried = tuple(select_carried_state(*s) for s in zip(new_lstm_state, lstm_state))
        is_eos = jnp.logical_or(is_eos, x[:, 0] > 0.9)
        return (carried, is_eos), y

    @staticmethod
    def initialize_carry(batch_size, hidden_size):
        # Use a dummy key since the default state init fn is just zeros.
        return nn.LSTMCell.initialize_carry(
            jax.random.PRNGKey(0), (batch_size,), hidden_size)


class Seq2seq(nn.Module):
    hidden_size: int

    @nn.compact
    def __call__(self, x):
        batch_size = x.shape[0]
        lstm = EncoderLSTM(name="encoder")
        init_lstm_state = lstm.initialize_carry(batch_size, self.hidden_size)
        init_is_eos = jnp.zeros(batch_size, dtype=bool)
        (final_state, _), _ = lstm((init_lstm_state, init_is_eos), x)
        carry, outs = final_state, []
        cell = nn.LSTMCell(name="decoder")
        for t in range(3):
            carry, y = cell(carry, x[:, t])
            outs.append(nn.Dense(3, name=f"out_{t}")(y))
        return jnp.stack(outs, 1)


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
    return Seq2seq(4).init_with_output(jax.random.PRNGKey(1), x)
