"""Pattern 1: the width is that of a carry that came in, for one or two parts."""
import flax.linen as nn
import jax
import jax.numpy as jnp


class Step(nn.Module):
    @nn.compact
    def __call__(self, carry, x):
        gru_carry, lstm_carry = carry
        gru_carry, y = nn.GRUCell()(gru_carry, x)
        lstm_carry, y = nn.LSTMCell(name="top")(lstm_carry, y)
        return (gru_carry, lstm_carry), y


class Hard(nn.Module):
    @nn.compact
    def __call__(self, carry, x):
        return nn.OptimizedLSTMCell(gate_fn=nn.hard_sigmoid)(carry, x)


def run():
    x = jnp.sin(jnp.arange(6.0)).reshape(2, 3)
    key = jax.random.PRNGKey(0)
    gru = nn.GRUCell.initialize_carry(key, (2,), 4)
    lstm = nn.LSTMCell.initialize_carry(key, (2,), 5)
    step = Step().init_with_output(key, (gru, lstm), x)
    hard = Hard().init_with_output(key, nn.OptimizedLSTMCell.initialize_carry(key, (2,), 6), x)
    return step, hard
