"""Figures of what the paper's networks do, before and after training.

activations  gates and cell states over one sequence, for one row of each table
solutions    two networks that solve task 6a in different ways
saturation   cell states after the first sequence, before any update, in 2c
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments.paper1997.learners.network import Weights
from experiments.paper1997.learners.online import at_last_step, trace
from experiments.paper1997.tasks import embedded_reber as reber
from experiments.paper1997.tasks import temporal_order
from experiments.paper1997.tasks.sequence import Sequence
from experiments.paper1997.training.trainer import Trainer
from experiments.reports.paper1997.results import Outcome
from experiments.settings.reading import config_path, read_config
from experiments.settings.tasks import (
    AnyTask,
    EmbeddedReber,
    LongLags,
    MarkedPairs,
    TemporalOrder,
    TwoClasses,
    VeryLongLags,
)

SIX_A = "temporal-order-6a"
# Colours that the colour-blind can tell apart (Okabe & Ito, 2008).
COLORS = "#0072B2", "#E69F00"


def draw(shown: dict[str, Outcome]) -> dict[str, Figure | None]:
    """Draws all figures, given the outcome that decides each row; None: no weights."""
    return {
        "activations": draw_activations(shown),
        "solutions": draw_solutions(shown[SIX_A]) if SIX_A in shown else None,
        "saturation": draw_saturation([name for name in shown if "2c" in name]),
    }


def draw_activations(shown: dict[str, Outcome]) -> Figure | None:
    """Draws gates and cell states for the first stored network of each table.

    Input gates are solid, output gates dashed, in the color of their block.
    """
    chosen = {}
    for name, outcome in shown.items():
        table = outcome.result["config"]["paper"]["table"]
        if table not in chosen and outcome.weights is not None:
            chosen[table] = name, outcome
    if not chosen:
        return None
    figure = Figure(figsize=(10, 1.9 * len(chosen)), layout="constrained")
    grid = figure.subplots(len(chosen), 2, squeeze=False)
    for (left, right), (name, outcome) in zip(grid, chosen.values(), strict=True):
        trainer = trainer_of(name, outcome)
        number = outcome.solved[0]["trial"]
        sequence = trainer.sample(number, trainer.keys(jnp.array([number]))[2][0])
        run = traced(trainer, outcome, 0, sequence.inputs[None], sequence.length)
        steps = relevant_steps(trainer.experiment.task, sequence)
        gates = run["input gates"][0]
        left.plot(gates, lw=0.9)
        left.set_prop_cycle(None)
        left.plot(run["output gates"][0], lw=0.9, ls="--")
        left.set_ylim(0, 1)
        right.plot(run["states of cells"][0], lw=0.9)
        for axes in (left, right):
            axes.tick_params(labelsize=6)
            for step in steps:
                axes.axvline(step, color="0.85", zorder=0)
        left.set_xticks(list(steps), list(steps.values()))
        open_at = np.isin(np.arange(len(gates)), list(steps))
        title = f"{name}, {outcome.reading}: input gates"
        if not open_at.all():
            at, rest = gates[open_at].max(), gates[~open_at].max()
            title += f" up to {at:.2f} at the labels, {rest:.2f} elsewhere"
        left.set_title(title, fontsize=7, loc="left")
        right.set_title("states of cells", fontsize=7, loc="left")
    grid[-1, 0].set_xlabel(
        "step, with the inputs that matter (input gates: solid, output gates: dashed)",
        fontsize=7,
    )
    grid[-1, 1].set_xlabel("step", fontsize=7)
    return figure


def relevant_steps(task: AnyTask, sequence: Sequence) -> dict[int, str]:
    """Returns the steps whose inputs decide the target, with labels of the inputs."""
    x = np.asarray(sequence.inputs)[: int(sequence.length)]
    match task:
        case EmbeddedReber():
            return {step: reber.SYMBOLS[symbol] for step, symbol in enumerate(x)}
        case TemporalOrder():
            at = np.flatnonzero(x >= temporal_order.X)
            return {int(step): temporal_order.SYMBOLS[x[step]] for step in at}
        case MarkedPairs():
            at = np.flatnonzero(x[:, 1] == 1)
            return {int(step): f"{x[step, 0]:.2f}" for step in at}
        case TwoClasses():
            last = task.information - 1
            return dict.fromkeys(range(last), "") | {last: f"first {last + 1}"}
        case VeryLongLags():
            return {1: "class", len(x) - 1: "trigger"}
        case LongLags():
            return {0: "class"}
    raise ValueError(f"The task `{task.name}` has no relevant steps.")


def draw_solutions(outcome: Outcome) -> Figure | None:
    """Draws two networks of task 6a on one sequence with XX, XY, YX and YY.

    A network must respond to the second symbol depending on the first. In one network,
    an input gate does this. The other network is the one whose input gates do it least.
    """
    if outcome.weights is None:
        return None
    trainer = trainer_of(SIX_A, outcome)
    four, *marked, length = four_orders(trainer)
    runs = [
        traced(trainer, outcome, k, four, length)
        for k in range(outcome.weights["inputs"].shape[-1])
    ]
    by_gate = [gate_share(run["input gates"], marked[1]) for run in runs]
    figure = Figure(figsize=(10, 6), layout="constrained")
    grid = figure.subplots(4, 2, sharex=True)
    for column, k in zip(grid.T, (np.argmax(by_gate), np.argmin(by_gate)), strict=True):
        trial = outcome.solved[k]["trial"]
        column[0].set_title(f"trial {trial}", fontsize=8)
        gates, states = runs[k]["input gates"], runs[k]["states of cells"]
        for block in range(gates.shape[-1]):
            size = states.shape[-1] // gates.shape[-1]
            upper, lower = column[2 * block : 2 * block + 2]
            for order, gate, state in zip(
                ("XX", "XY", "YX", "YY"), gates, states, strict=True
            ):
                upper.plot(gate[:, block], linewidth=0.8, label=order)
                lower.plot(state[:, block * size], linewidth=0.8)
            upper.set_ylabel(f"input gate {block + 1}", fontsize=7)
            lower.set_ylabel(f"state of a cell, {block + 1}", fontsize=7)
            upper.set_ylim(0, 1)
            for t in marked:
                upper.axvline(t, color="0.8", zorder=0)
                lower.axvline(t, color="0.8", zorder=0)
        column[-1].set_xlabel("step (grey lines: the two symbols)", fontsize=7)
    grid[0, 0].legend(fontsize=6, ncols=4)
    return figure


def trainer_of(name: str, outcome: Outcome) -> Trainer:
    """Returns the trainer of the reading of an outcome."""
    reading = outcome.result["reading"]
    return Trainer(read_config(config_path(name), reading))


def traced(
    trainer: Trainer, outcome: Outcome, k: int, inputs: Any, length: Any
) -> dict[str, np.ndarray]:
    """Returns gates and states of a stored network, `(sequences, time, units)`.

    Args:
      trainer: the trainer of the outcome.
      outcome: an outcome with stored weights.
      k: index of the network.
      inputs: `(sequences, time, ...)`.
      length: length of the sequences.
    """
    kept = {name: leaf[..., k, None] for name, leaf in outcome.weights.items()}
    network = trainer.learner.network
    w = Weights(**{name: kept.get(name) for name in Weights._fields})
    w = jax.tree.map(jnp.asarray, w)
    steps = jnp.moveaxis(inputs, 0, -1)
    states, _ = trace(network, w, steps, jnp.full(len(inputs), length))
    y = np.moveaxis(states.y, -1, 0)[:, : int(length)]
    s = np.moveaxis(states.s, -1, 0)[:, : int(length)]
    first, last = network.cells, network.cells + network.blocks
    return {
        "input gates": y[..., first:last],
        "states of cells": s,
        "output gates": y[..., last:],
    }


def four_orders(trainer: Trainer) -> tuple[jax.Array, int, int, int]:
    """Returns a sequence of 6a in the four orders, `t1`, `t2`, and its length."""
    sequence = trainer.sample(0, jax.random.key(0))
    symbols, x = np.asarray(sequence.inputs), temporal_order.X
    first, second = np.flatnonzero(symbols >= x)
    four = np.stack([symbols] * 4)
    four[:, first] = [x, x, x + 1, x + 1]
    four[:, second] = [x, x + 1, x, x + 1]
    return jnp.asarray(four), int(first), int(second), int(sequence.length)


def gate_share(gates: np.ndarray, second: int) -> float:
    """Returns how much an input gate at `t2` depends on the first symbol.

    Args:
      gates: input gates for XX, XY, YX, YY, `(4, time, blocks)`.
      second: `t2`.
    """
    xx, xy, yx, yy = gates[:, second]
    return float(np.max(np.abs([xx - yx, xy - yy])))


# Readings whose cells are compared before the first update.
RANGES = {"as-written": None, "ranges-of-caption": "ranges-of-caption"}
# From this state on, the derivative of h is below 0.2 % of that at 0, for any range.
FLAT = 7.6


def draw_saturation(rows: list[str]) -> Figure | None:
    """Draws the cell states of rows of 2c after one sequence, before any update."""
    if not rows:
        return None
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot()
    for k, (label, reading) in enumerate(RANGES.items()):
        states = [first_states(name, reading) for name in rows]
        low, middle, high = np.quantile(states, (0.25, 0.5, 0.75), axis=1)
        at = np.arange(len(rows)) + 0.15 * (2 * k - 1)
        error = middle - low, high - middle
        axes.errorbar(at, middle, error, fmt="os"[k], color=COLORS[k], label=label)
    axes.axhline(
        FLAT, color="0.5", ls="--", label="h is flat above: h'(s) < 0.002 h'(0)"
    )
    axes.set_yscale("log")
    tasks = [read_config(config_path(name)).task for name in rows]
    names = [
        f"{name[-4:]}\nq = {t.lag}\np = {t.distractors}"
        for name, t in zip(rows, tasks, strict=True)
    ]
    axes.set_xticks(range(len(rows)), names)
    axes.set_ylabel("absolute state of a cell")
    axes.set_title("Cells of 2c after one sequence, before the first update")
    axes.legend()
    return figure


def first_states(name: str, reading: str | None) -> np.ndarray:
    """Returns the absolute states of all cells of all trials after one sequence."""
    trainer = Trainer(read_config(config_path(name), reading))
    numbers = jnp.arange(trainer.experiment.trials)

    @jax.jit
    def last_states():
        initial, training, _ = trainer.keys(numbers)
        w = jax.vmap(trainer.learner.init, out_axes=-1)(initial)
        first = jax.vmap(lambda key: jax.random.fold_in(key, 0))(training)
        given = jax.vmap(trainer.sample, out_axes=-1)(numbers, first)
        states, _ = trace(trainer.learner.network, w, given.inputs, given.length)
        return at_last_step(states.s, given.length)

    return np.abs(np.asarray(last_states())).ravel()
