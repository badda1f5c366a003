"""Pictures of a trained network, from what `inspection.py` has found.

gates-LAYER   gates and states of one sequence, with its symbols under them
gradients     norms of gradients over lag
spectra       eigenvalues of steps in the unit circle
saturation    how often the units of the gates are near 0 and 1
drift         states over time
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.supervised.task import Examples
from rnncells import plots

# Largest numbers of steps and of units of a heat map.
STEPS, UNITS = 60, 32


def draw(layers: dict[str, Any], examples: Examples) -> dict[str, Figure | None]:
    """Returns the figures by name; None where a network has nothing to draw.

    Args:
      layers: a `Layer` for each path.
      examples: the sequences that the network has read.
    """
    symbols = None if examples.symbols is None else examples.symbols[0]
    gates = {
        f"gates-{name.replace('/', '-')}": draw_gates(layer, symbols)
        for name, layer in layers.items()
    }
    return gates | {
        "gradients": draw_gradients(layers),
        "spectra": draw_spectra(layers),
        "saturation": draw_saturation(layers),
        "drift": draw_drift(layers),
    }


def draw_gates(layer: Any, symbols: list[str] | None) -> Figure | None:
    """Draws the gates and the states of the first sequence."""
    rows = {f"gate {name}": layer.values[name] for name in layer.gates}
    rows |= {_state(layer, k): state for k, state in enumerate(layer.states)}
    rows = {name: array for name, array in rows.items() if array.ndim == 3}
    steps = min(int(layer.mask[0].sum()), STEPS)
    if not rows or not steps:
        return None
    figure = Figure(figsize=(10, 1.9 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), squeeze=False)[:, 0]
    text = None if symbols is None else symbols[:steps]
    for panel, (name, array) in zip(panels, rows.items(), strict=True):
        plots.gate_over_text(array[0, :steps, :UNITS], text, panel, name=name)
        panel.tick_params(labelsize="small")
        panel.set_xlabel("")
    panels[-1].set_xlabel("step" if text is None else "input symbol")
    return figure


def draw_gradients(layers: dict[str, Any]) -> Figure:
    """Draws the norms of dL/dh_t and of dh_T/dh_t over lag."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    loss = {name: layer.loss_gradients for name, layer in layers.items()}
    plots.gradients_over_lag(loss, left, quantity="‖∂L / ∂h_t‖")
    left.set_title("gradient of the loss at the end of a sequence")
    carry = {name: layer.carry_gradients for name, layer in layers.items()}
    plots.gradients_over_lag(carry, right, quantity="‖∂h_T / ∂h_t‖ / ‖I‖")
    right.set_title("gradient of the last carry")
    return figure


def draw_spectra(layers: dict[str, Any]) -> Figure:
    """Draws the eigenvalues of the last steps of all sequences."""
    figure = Figure(figsize=(5, 5), layout="constrained")
    panel = figure.add_subplot()
    for name, layer in layers.items():
        plots.spectrum(layer.eigenvalues, panel, label=name)
    panel.set_title("eigenvalues of ∂h_t / ∂h_{t−1} at the last step")
    return figure


def draw_saturation(layers: dict[str, Any]) -> Figure | None:
    """Draws the saturation of the gates, a panel for each layer."""
    with_gates = {name: layer for name, layer in layers.items() if layer.gates}
    if not with_gates:
        return None
    count = len(with_gates)
    figure = Figure(figsize=(4.5 * count, 4.5), layout="constrained")
    panels = figure.subplots(1, count, squeeze=False)[0]
    for panel, (name, layer) in zip(panels, with_gates.items(), strict=True):
        shares = {f"gate {gate}": share for gate, share in layer.saturation.items()}
        plots.saturation(shares, panel)
        panel.set_title(name)
    return figure


def draw_drift(layers: dict[str, Any]) -> Figure:
    """Draws the mean and the standard deviation of the states over time."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    panel = figure.add_subplot()
    states = {
        f"{name}: {_state(layer, k)}": drift
        for name, layer in layers.items()
        for k, drift in enumerate(layer.drift)
    }
    plots.drift(states, panel)
    panel.set_title("states over time")
    return figure


def _state(layer: Any, number: int) -> str:
    """Returns the name in the cell's code of a leaf of the carry, if it has one."""
    state = layer.states[number]
    for name, values in layer.values.items():
        if values.shape == state.shape and np.array_equal(values, state):
            return f"state {name}"
    return f"state {number}"
