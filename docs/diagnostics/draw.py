"""Draws the pictures of docs/diagnostics.md.

    python docs/diagnostics/draw.py RUN

RUN is the folder of a run of `char-lm`; docs/diagnostics.md has the command.
"""

import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.figure import Figure

import rnncells
from rnncells import diagnostics, plots

FOLDER = Path(__file__).resolve().parent
FEATURES, INPUTS, BATCH, TIME = 32, 16, 4, 100


def cells():
    """Returns every kind of cell, by name; those with dropout equal these without."""
    kinds = [
        *(rnncells.SimpleCell, rnncells.LSTMCell, rnncells.GRUCell, rnncells.MGUCell),
        *(rnncells.PeepholeLSTMCell, rnncells.CoupledLSTMCell),
        *(rnncells.LayerNormLSTMCell, rnncells.LayerNormGRUCell),
        *(rnncells.LSTM1997Cell, rnncells.LSTM2000Cell),
    ]
    made = {kind.__name__: kind(FEATURES) for kind in kinds}
    made["ProjectedLSTMCell"] = rnncells.ProjectedLSTMCell(FEATURES, FEATURES // 2)
    bias = rnncells.initializers.forget_gate(4.0)
    made["LSTMCell, forget bias 4"] = rnncells.LSTMCell(FEATURES, bias_init=bias)
    made["ConvLSTMCell"] = rnncells.ConvLSTMCell(2, (3, 3))
    made["ConvGRUCell"] = rnncells.ConvGRUCell(2, (3, 3))
    return made


def draw_all_cells() -> Figure:
    """Draws dh_T/dh_t of all cells with their initial weights."""
    norms = {}
    for name, cell in cells().items():
        is_conv = name.startswith("Conv")
        shape = (BATCH, TIME, 4, 4, 1) if is_conv else (BATCH, TIME, INPUTS)
        x = jax.random.normal(jax.random.key(0), shape)
        rnn = rnncells.RNN(cell)
        variables = rnn.init(jax.random.key(1), x)
        found = jax.jit(partial(diagnostics.record, rnn, jacobians=True))(variables, x)
        norms[name] = diagnostics.by_lag(
            diagnostics.carry_gradients(found[""].jacobians)
        )
    at_last = {name: float(jnp.mean(of[:, -1])) for name, of in norms.items()}
    figure = Figure(figsize=(9, 5), layout="constrained")
    ax = figure.add_subplot()
    order = sorted(norms, key=at_last.get, reverse=True)
    plots.gradients_over_lag({name: norms[name] for name in order}, ax)
    ax.set_ylim(1e-20, 1e3)
    ax.set_title("vanishing gradients of all cells, initial weights")
    return figure


class Run:
    """A trained language model, its values and gradients on some test text."""

    def __init__(self, folder: Path):
        from experiments.supervised.inspection import load

        task, params = load(folder)
        examples = task.examples(task.data, 4, TIME)
        given = task.model, {"params": params}, examples.inputs
        self.text = examples.symbols[0]
        [self.found] = diagnostics.record(*given, jacobians=True).values()

        def loss(outputs):
            return examples.loss(outputs[1])

        [self.slopes] = diagnostics.cotangents(loss, *given).values()

    def draw_gates(self) -> Figure:
        """Draws the gates of the first sequence, with its text."""
        figure = Figure(figsize=(10, 6), layout="constrained")
        names = {"f": "forget gate f", "i": "input gate i", "c": "cell state c"}
        for ax, (name, label) in zip(figure.subplots(3), names.items(), strict=True):
            array = self.found.values[name][0, :60, :24]
            plots.gate_over_text(array, self.text[:60], ax, name=label)
        return figure

    def draw_loss(self) -> Figure:
        """Draws the gradient of the loss of the last character over lag."""
        c, h = self.slopes.carry
        norms = {"∂L / ∂c_t": diagnostics.norms(c), "∂L / ∂h_t": diagnostics.norms(h)}
        figure = Figure(figsize=(6, 4), layout="constrained")
        plots.gradients_over_lag(
            {name: diagnostics.by_lag(array) for name, array in norms.items()},
            figure.add_subplot(),
            quantity="norm of the gradient",
        )
        return figure

    def draw_spectrum(self) -> Figure:
        """Draws the eigenvalues of the first and the last step."""
        figure = Figure(figsize=(5, 5), layout="constrained")
        ax = figure.add_subplot()
        for name, step in (("step 1", 0), (f"step {TIME}", -1)):
            values = jnp.linalg.eigvals(self.found.jacobians[0])[step]
            plots.spectrum(values, ax, label=name)
        return figure

    def draw_saturation(self) -> Figure:
        """Draws how often the units of the gates are saturated."""
        names = {"f": "forget gate f", "i": "input gate i", "o": "output gate o"}
        shares = {
            label: diagnostics.saturation(self.found.values[name], self.found.mask)
            for name, label in names.items()
        }
        figure = Figure(figsize=(5, 5), layout="constrained")
        plots.saturation(shares, figure.add_subplot())
        return figure

    def draw_drift(self) -> Figure:
        """Draws the states over time."""
        names = {"c": "cell state c", "h": "output h"}
        states = {
            label: diagnostics.drift(self.found.values[name], self.found.mask)
            for name, label in names.items()
        }
        figure = Figure(figsize=(6, 4), layout="constrained")
        plots.drift(states, figure.add_subplot())
        return figure


def main(folder: str) -> None:
    """Writes all pictures beside this file, and prints the numbers of the page."""
    run = Run(Path(folder))
    drawn = {
        "all-cells": draw_all_cells(),
        "gates": run.draw_gates(),
        "loss": run.draw_loss(),
        "spectrum": run.draw_spectrum(),
        "saturation": run.draw_saturation(),
        "drift": run.draw_drift(),
    }
    # The same arrays give the same files.
    options = {"svg.hashsalt": "diagnostics", "svg.fonttype": "none"}
    with matplotlib.rc_context(options):
        for name, figure in drawn.items():
            figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    exponents = np.asarray(diagnostics.lyapunov_exponents(run.found.jacobians))
    print("first Lyapunov exponents:", exponents[:, 0].round(3))
    values = jnp.linalg.svdvals(run.found.jacobians)
    print("largest singular value, mean over steps:", float(values[..., 0].mean()))


if __name__ == "__main__":
    main(*sys.argv[1:])
