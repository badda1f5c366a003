"""From PyTorch: loads a trained model of PyTorch, and trains it further.

    python examples/from_pytorch.py

The model is a bidirectional LSTM with a linear layer. If PyTorch is installed, the
script trains it there, on sums of two noisy channels; otherwise it starts from random
weights in PyTorch's layout. It prints that both libraries agree, and the error before
and after training further on other data, here with the channels' difference.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import rnncells
from rnncells.interop import pytorch

try:
    import torch
except ImportError:
    torch = None

FEATURES = 16


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):  # (batch, time, 2)
        y, _ = rnncells.LSTM(FEATURES, bidirectional=True, name="lstm")(x)
        return nn.Dense(1, name="out")(y)


def sample(rng, batch, time, sign=1.0):
    """Returns two channels, and at each step their running sum or difference."""
    x = rng.standard_normal((batch, time, 2)).astype(np.float32)
    y = np.cumsum(x[..., :1] + sign * x[..., 1:], axis=1) / np.sqrt(time)
    return x, y.astype(np.float32)


def train_in_pytorch(rng, updates, batch, time):
    """Returns the names and arrays of a trained model, and its outputs for an input."""
    lstm = torch.nn.LSTM(2, FEATURES, batch_first=True, bidirectional=True)
    model = torch.nn.ModuleDict({"lstm": lstm, "out": torch.nn.Linear(2 * FEATURES, 1)})
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(updates):
        x, y = map(torch.from_numpy, sample(rng, batch, time))
        loss = ((model["out"](model["lstm"](x)[0]) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    outputs = model["out"](model["lstm"](x)[0]).detach().numpy()
    return model.state_dict(), x.numpy(), outputs


def random_state_dict(rng):
    """Returns arrays in the layout of PyTorch."""
    shapes = {"weight_ih": (64, 2), "weight_hh": (64, 16)} | dict.fromkeys(
        ("bias_ih", "bias_hh"), (64,)
    )
    names = [(name, end) for name in shapes for end in ("_l0", "_l0_reverse")]
    shapes = {f"lstm.{name}{end}": shapes[name] for name, end in names}
    shapes |= {"out.weight": (1, 32), "out.bias": (1,)}
    return {name: rng.uniform(-0.25, 0.25, size) for name, size in shapes.items()}


def main(updates=200, batch=32, time=20):
    rng, model = np.random.default_rng(0), Model()
    x, theirs = sample(rng, batch, time)[0], None
    if torch is None:
        state_dict = random_state_dict(rng)
    else:
        state_dict, x, theirs = train_in_pytorch(rng, updates, batch, time)

    # The prefix chooses the layer; the linear layer is transposed by hand.
    lstm = rnncells.LSTM(FEATURES, bidirectional=True)
    params = pytorch.from_state_dict(lstm, state_dict, prefix="lstm.")["params"]
    weight, bias = (np.asarray(state_dict[f"out.{n}"]) for n in ("weight", "bias"))
    out = {"kernel": jnp.asarray(weight.T), "bias": jnp.asarray(bias)}
    params = {"params": {"lstm": params, "out": out}}
    if theirs is not None:
        difference = np.abs(model.apply(params, x) - theirs).max()
        print(f"largest difference to PyTorch: {difference:.1e}")

    optimizer = optax.adam(1e-2)

    def loss(params, x, y):
        return jnp.mean((model.apply(params, x) - y) ** 2)

    @jax.jit
    def train_step(params, state, x, y):
        updates, state = optimizer.update(jax.grad(loss)(params, x, y), state)
        return optax.apply_updates(params, updates), state

    test = sample(rng, 200, time, sign=-1.0)
    before = float(loss(params, *test))
    state = optimizer.init(params)
    for _ in range(updates):
        params, state = train_step(params, state, *sample(rng, batch, time, sign=-1.0))
    after = float(loss(params, *test))
    print(f"mean squared error: {before:.3f}; after training further: {after:.3f}")
    return before, after


if __name__ == "__main__":
    main()
