"""Export for serving: a file for whole batches, and a file for streams.

    python examples/export_serving.py

`jax.export` writes a compiled program with its parameters. The first file takes batches
of any size and length; the second one takes one time step and the states of a stream.
A server needs JAX to run them, but neither Flax, nor rnncells, nor this source code.
"""

import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import export

import rnncells

PLATFORMS = ["cpu", "cuda", "tpu"]


class Detector(nn.Module):
    features: int

    def setup(self):
        self.lstm = rnncells.LSTM(self.features, num_layers=2)
        self.logits = nn.Dense(3)

    def __call__(self, x, lengths):  # (batch, time, 5), (batch,)
        y, _ = self.lstm(x, seq_lengths=lengths)
        return self.logits(y)

    def step(self, states, x_t):  # (batch, 5)
        states, y = self.lstm.step(states, x_t)
        return states, self.logits(y)


def write(folder, features):
    """Writes both files; here the parameters are those before training."""
    model = Detector(features)
    x, lengths = jnp.ones((1, 1, 5)), jnp.array([1])  # any batch and time
    params = model.init(jax.random.key(0), x, lengths)
    # Symbolic sizes: one file for all batches and lengths.
    batch, time = export.symbolic_shape("batch, time")
    any_x = jax.ShapeDtypeStruct((batch, time, 5), jnp.float32)
    any_lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
    # States are (layers, batch, features).
    any_state = jax.ShapeDtypeStruct((2, batch, features), jnp.float32)
    any_states = rnncells.LSTMStates(any_state, any_state)

    def run(x, lengths):
        return model.apply(params, x, lengths)

    def step(states, x_t):
        return model.apply(params, states, x_t, method="step")

    any_step = jax.ShapeDtypeStruct((batch, 5), jnp.float32)
    for name, function, arguments in (
        ("batches", run, (any_x, any_lengths)),
        ("streams", step, (any_states, any_step)),
    ):
        exported = export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
        (folder / name).write_bytes(exported.serialize())
    return model, params


def serve(path):
    """Returns the function in a file."""
    return export.deserialize(path.read_bytes()).call


def main(features=16, time=9):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model, params = write(folder, features)
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        batches, streams = serve(folder / "batches"), serve(folder / "streams")
    for name, size in sorted(sizes.items()):
        print(f"{name}: {size / 1000:.0f} kB")

    x = jax.random.normal(jax.random.key(1), (4, time, 5))
    lengths = jnp.full(4, time)
    expected = model.apply(params, x, lengths)
    whole = jnp.abs(batches(x, lengths) - expected).max()
    zeros = jnp.zeros((2, 4, features))  # (layers, batch, features)
    states, steps = rnncells.LSTMStates(zeros, zeros), []
    for t in range(time):
        states, y = streams(states, x[:, t])
        steps.append(y)
    stepwise = jnp.abs(jnp.stack(steps, axis=1) - expected).max()
    print(f"differences: {whole:.1e} in a batch, {stepwise:.1e} step by step")
    return float(whole), float(stepwise)


if __name__ == "__main__":
    main()
