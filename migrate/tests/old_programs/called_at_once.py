"""Cells that are called where they are made, with carries of many origins."""
import flax.linen as nn
import jax
import jax.numpy as jnp

KEY = jax.random.PRNGKey(0)
LIFT = dict(variable_broadcast="params", split_rngs={"params": False})


class CarryOrZeros(nn.Module):
    """The carry comes in, or is made: the cell, a scan of it, and one with a name."""

    n: int

    @nn.compact
    def __call__(self, x, h=None):
        if h is None:
            h = nn.GRUCell.initialize_carry(KEY, (x.shape[1],), self.n)
        h, _ = nn.GRUCell()(h, x[0])
        GRU = nn.scan(nn.GRUCell, **LIFT)
        h, y = GRU()(h, x)
        named = GRU(name="named")
        _, z = named(h, y)
        return y, z


class States(nn.Module):
    """A list of carries, one of which is taken in each turn of a loop."""

    @nn.compact
    def __call__(self, x, states=None):
        if states is None:
            states = [nn.GRUCell.initialize_carry(KEY, (2,), n) for n in (4, 5)]
        for i in range(2):
            _, x = nn.GRUCell()(states[i], x)
        return x


class Parts(nn.Module):
    """The parts of a carry have names of their own."""

    @nn.compact
    def __call__(self, x):
        c, h = nn.LSTMCell.initialize_carry(KEY, (2,), 4)
        (c, h), y = nn.LSTMCell()((c, h), x)
        options = dict(gate_fn=nn.hard_sigmoid)
        return nn.LSTMCell(**options)((c, h), y)


def applied(x):
    carry = nn.LSTMCell.initialize_carry(KEY, (2,), 4)
    params = nn.LSTMCell().init(KEY, carry, x)
    for _ in range(2):
        carry, y = nn.LSTMCell().apply(params, carry, x)
    return y


def run():
    x = jnp.sin(jnp.arange(30.0)).reshape(5, 2, 3)
    return (
        CarryOrZeros(4).init_with_output(KEY, x),
        CarryOrZeros(4).init_with_output(KEY, x, jnp.ones((2, 6))),
        States().init_with_output(KEY, x[0]),
        Parts().init_with_output(KEY, x[0]),
        applied(x[0]),
    )
