"""Forecasts with quantiles: yearly sunspots, and weekly CO2 with gaps in the data.

    python examples/quantiles.py

Networks predict the 10 %, 50 % and 90 % quantiles of the next value. Several networks
are trained at once by `jax.vmap`, and their quantiles averaged. Missing values are NaN:
`mask` skips them. The script prints the error of the median on the test part, next to
that of autoregressive models, and how often the value is between the outer quantiles.
"""

import csv
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import rnncells

DATA = Path(__file__).resolve().parent.parent / "experiments" / "data"
QUANTILES = jnp.array([0.1, 0.5, 0.9])


class Forecaster(nn.Module):
    features: int

    @nn.compact
    def __call__(self, x, mask):  # (time, inputs), (time,)
        y = rnncells.RNN(rnncells.GRUCell(self.features))(x, mask=mask)
        low, middle, high = jnp.split(nn.Dense(3)(y), 3, axis=-1)
        widths = nn.softplus(low), nn.softplus(high)  # quantiles never cross
        return jnp.concatenate([middle - widths[0], middle, middle + widths[1]], -1)


def read(name):
    """Returns the values of a series, NaN where they are missing."""
    with open(DATA / f"{name}.csv", newline="") as file:
        return np.array([float(row[1] or "nan") for row in [*csv.reader(file)][1:]])


def examples(series, period):
    """Returns inputs, masks and targets of all steps but the last.

    The inputs are the value, its change, and the season; the target is the next change.
    """
    mask = np.isfinite(series)
    index = np.maximum.accumulate(np.where(mask, np.arange(len(series)), 0))
    last = series[index]  # the last known value
    change = series - np.concatenate([last[:1], last[:-1]])
    angle = 2 * np.pi * np.arange(len(series)) / period
    inputs = np.stack([series, change, np.sin(angle), np.cos(angle)], axis=-1)
    return inputs[:-1], mask[:-1], series[1:] - last[:-1]


def pinball(quantiles, target):
    """The loss whose minimum are the quantiles (Koenker and Bassett, 1978)."""
    error = target[:, None] - quantiles
    losses = jnp.maximum(QUANTILES * error, (QUANTILES - 1) * error)
    return jnp.mean(losses, where=jnp.isfinite(target)[:, None])


def forecast(series, train, period, updates, networks, features):
    """Trains on the first steps; returns quantiles and targets of all steps."""
    scale = np.nanstd(series[:train])
    x, mask, target = examples((series - np.nanmean(series[:train])) / scale, period)
    model, optimizer = Forecaster(features), optax.adamw(1e-2, weight_decay=1.0)

    @jax.vmap
    def fit(key):
        def loss(params):
            return pinball(model.apply(params, x[:train], mask[:train]), target[:train])

        def update(state, _):
            params, opt_state = state
            change, opt_state = optimizer.update(
                jax.grad(loss)(params), opt_state, params
            )
            return (optax.apply_updates(params, change), opt_state), None

        params = model.init(key, x, mask)
        state = (params, optimizer.init(params))
        (params, _), _ = jax.lax.scan(update, state, length=updates)
        return model.apply(params, x, mask)

    quantiles = np.asarray(jax.jit(fit)(jax.random.split(jax.random.key(0), networks)))
    return scale * quantiles.mean(0), scale * target


def report(name, quantiles, target, part, unit, baseline):
    low, middle, high = quantiles[part].T
    error = float(np.sqrt(np.mean((middle - target[part]) ** 2)))
    inside = float(np.mean((low <= target[part]) & (target[part] <= high)))
    print(
        f"{name}: error {error:.3g} {unit} ({baseline}); "
        f"{inside:.0%} of the values between the 10 % and 90 % quantiles"
    )
    return error, inside


def main(updates=150, networks=8, features=8, weeks=2283):
    # Chosen for sunspots on 1891-1920, with training up to 1890.
    results = []
    quantiles, target = forecast(read("sunspots"), 220, 11, updates, networks, features)
    for years, baseline in (((1921, 1955), "13.8"), ((1956, 1979), "22.9")):
        part = slice(years[0] - 1701, years[1] - 1700)
        name, baseline = "sunspots {}-{}".format(*years), f"AR(9): {baseline}"
        results.append(report(name, quantiles, target, part, "", baseline))
    co2, train = read("co2")[-weeks - 1 :], weeks - 520
    known = np.flatnonzero(np.isfinite(co2[:train]))
    co2 -= np.polyval(np.polyfit(known, co2[known], 1), np.arange(weeks + 1))
    quantiles, target = forecast(co2, train, 52.18, updates, 4, features)
    part = slice(train, weeks)
    results.append(report("CO2", quantiles, target, part, "ppm", "AR(52): 0.418"))
    return results


if __name__ == "__main__":
    main()
