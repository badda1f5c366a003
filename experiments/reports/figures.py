"""Figures of the paper's rows, from the committed results.

sequences    sequences until success by verdict: the paper's means, and our trials
curves       errors on training sequences: median and quartiles of the trials
activations  gates and cell states over one sequence, for one row of each table
solutions    two networks that solve task 6a in different ways
baselines    sequences until success, for modern networks
"""

from itertools import cycle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.paper1997.learners.network import Weights
from experiments.paper1997.learners.online import trace
from experiments.paper1997.tasks import temporal_order
from experiments.paper1997.training.trainer import Trainer
from experiments.reports.kept import LITERAL, Outcome, outcomes
from experiments.reports.pages import ROOT
from experiments.reports.paper1997 import deciding
from experiments.reports.svg import save
from experiments.reports.tables import reached
from experiments.settings.reading import (
    baselines,
    config_path,
    paper_names,
    read_config,
)

# Colours that the colour-blind can tell apart (Okabe & Ito, 2008).
OURS, WRITTEN, PAPERS = "#0072B2", "#E69F00", "black"
OF_PAPER = {"marker": "|", "ls": "", "color": PAPERS, "ms": 12, "mew": 2}
SUCCESS = {"marker": ".", "ls": "", "ms": 6, "alpha": 0.6}
EARLIER = {"marker": "o", "ls": "", "ms": 4, "mfc": "none", "alpha": 0.6}
FAILURE = {"marker": "x", "ls": "", "ms": 5, "alpha": 0.6}
# In the order of the panels.
WORDS = "reproduced", "learnt, slower", "partly", "never"
SIX_A = "temporal-order-6a"


def write(folder: Path = ROOT / "docs" / "paper1997") -> list[Path]:
    """Draws all figures, and returns their files."""
    found = {name: outcomes(name) for name in paper_names()}
    decided = {name: deciding(of_row)[1] for name, of_row in found.items()}
    shown = {name: outcome for name, outcome in decided.items() if outcome}
    drawn = {
        "sequences": draw_sequences(found),
        "curves": draw_curves(shown),
        "activations": draw_activations(shown),
        "solutions": draw_solutions(shown[SIX_A]) if SIX_A in shown else None,
        "baselines": draw_baselines(found),
    }
    return save(drawn, folder)


def draw_sequences(found: dict[str, list[Outcome]]) -> Figure:
    """Draws sequences until success, with a panel for each word of the verdicts.

    A row has the paper's mean at each stopping point, the trials of the reading that
    decides, and below them those of the literal reading if it is another.
    """
    panels: dict[str, list[tuple[Outcome, Outcome | None]]] = {w: [] for w in WORDS}
    for of_row in found.values():
        words, best = deciding(of_row)
        if best is not None:
            others = [one for one in of_row if one.kind == "literal" and one != best]
            word = next(word for word in WORDS if f"*{word}*" in words)
            panels[word].append((best, others[0] if others else None))
    panels = {word: rows for word, rows in panels.items() if rows}
    heights = [len(rows) for rows in panels.values()]
    figure = Figure(figsize=(10, 2 + 0.3 * sum(heights)), layout="constrained")
    grid = figure.subplots(
        len(panels), sharex=True, squeeze=False, height_ratios=heights
    )[:, 0]
    for axes, (word, rows) in zip(grid, panels.items(), strict=True):
        _draw_rows(axes, rows)
        axes.set_title(word, loc="left", fontsize=9)
        axes.set_xscale("log")
    grid[-1].set_xlabel(
        "training sequences until success; of failed trials, until the cap"
    )
    for style, label in (
        (OF_PAPER, "the paper's mean"),
        (SUCCESS | {"color": OURS}, "a trial of ours, with the best reading"),
        (SUCCESS | {"color": WRITTEN}, "as written"),
        (EARLIER | {"color": OURS}, "at the first of two stopping points"),
        (FAILURE | {"color": OURS}, "a failed trial"),
    ):
        grid[0].plot([], [], **style, label=label)
    figure.legend(loc="outside upper center", ncols=3, fontsize=8)
    return figure


def _draw_rows(axes: Axes, rows: list[tuple[Outcome, Outcome | None]]) -> None:
    labels = []
    for k, (best, written) in enumerate(rows):
        config = best.result["config"]
        row, *_ = config["paper"]["row"].split(",")
        title = config["title"]
        labels.append(title if f"task {row}" in title else f"{row}: {title}")
        printed = config["paper"]["sequences"]
        axes.plot(printed, [k] * len(printed), **OF_PAPER)
        _draw_trials(axes, k - 0.2 if written else k, best, OURS)
        if written:
            _draw_trials(axes, k + 0.2, written, WRITTEN)
    axes.set_yticks(range(len(rows)), labels, fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", color="0.9")


def _draw_trials(axes: Axes, at: float, outcome: Outcome, color: str) -> None:
    trials, config = outcome.result["trials"], outcome.result["config"]
    *earlier, last = range(len(config["paper"]["sequences"]))
    for point in earlier:
        reached_it = reached(trials, point)
        axes.plot(reached_it, [at] * len(reached_it), **EARLIER, color=color)
    succeeded = reached(trials, last)
    axes.plot(succeeded, [at] * len(succeeded), **SUCCESS, color=color)
    caps = [config["learning"]["max_sequences"]] * len(outcome.failed)
    axes.plot(caps, [at] * len(caps), **FAILURE, color=color)


def draw_curves(shown: dict[str, Outcome]) -> Figure:
    """Draws medians and quartiles of the error, of rows whose error falls."""
    shown = {name: outcome for name, outcome in shown.items() if _falls(outcome)}
    columns = 4
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(10, 1.8 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    for axes, (name, outcome) in zip(grid.flat, shown.items(), strict=False):
        curve = outcome.result["curve"]
        sequences = curve["sequences"]
        low, high = (np.array(curve[name], float) for name in ("low", "high"))
        axes.fill_between(sequences, low, high, color=OURS, alpha=0.3)
        axes.plot(sequences, np.array(curve["median"], float), color=OURS)
        paper = outcome.result["config"]["paper"]["sequences"]
        axes.axvline(paper[-1], color=PAPERS)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{name}\n{outcome.reading}", fontsize=7)
        axes.tick_params(labelsize=6)
    figure.supxlabel(
        "number of training sequences (black: the paper's success)", fontsize=8
    )
    figure.supylabel("mean absolute error", fontsize=8)
    return figure


def _falls(outcome: Outcome) -> bool:
    """Says whether the median error ever falls by a tenth."""
    median = np.array(outcome.result["curve"]["median"], float)
    return bool(np.nanmin(median) < 0.9 * median[0])


def draw_activations(shown: dict[str, Outcome]) -> Figure | None:
    """Draws gates and cell states for the first stored network of each table."""
    chosen = {}
    for name, outcome in shown.items():
        table = outcome.result["config"]["paper"]["table"]
        if table not in chosen and outcome.weights is not None:
            chosen[table] = name, outcome
    if not chosen:
        return None
    figure = Figure(figsize=(10, 1.6 * len(chosen)), layout="constrained")
    grid = figure.subplots(len(chosen), 3, squeeze=False)
    for row, (name, outcome) in zip(grid, chosen.values(), strict=True):
        trainer = trainer_of(name, outcome)
        number = outcome.solved[0]["trial"]
        sequence = trainer.sample(number, trainer.keys(jnp.array([number]))[2][0])
        run = traced(trainer, outcome, 0, sequence.inputs[None], sequence.length)
        parts = run["input gates"], run["states of cells"], run["output gates"]
        for axes, part in zip(row, parts, strict=True):
            axes.plot(part[0], linewidth=0.8)
            axes.tick_params(labelsize=6)
        row[0].set_ylabel(f"{name}\n{outcome.reading}", fontsize=6)
        row[0].set_ylim(0, 1)
        row[2].set_ylim(0, 1)
    for axes, title in zip(grid[0], run, strict=True):
        axes.set_title(title, fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("step", fontsize=7)
    return figure


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


def draw_baselines(found: dict[str, list[Outcome]]) -> Figure | None:
    """Draws the mean number of sequences until success by row and network."""
    rows = {
        name: {outcome.reading: outcome for outcome in of_row}
        for name, of_row in found.items()
        if any(outcome.kind == "baseline" for outcome in of_row)
    }
    if not rows:
        return None
    figure = Figure(figsize=(8, 1.5 + 0.3 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for mark, network in zip(cycle("o^sdvDp"), (LITERAL, *baselines())):
        means = [
            of_row[network].mean() if network in of_row else None
            for of_row in rows.values()
        ]
        means = [np.nan if mean is None else mean for mean in means]
        axes.plot(means, range(len(rows)), mark, label=network, alpha=0.8)
    papers = [
        next(iter(of_row.values())).result["config"]["paper"]["sequences"][-1]
        for of_row in rows.values()
    ]
    axes.plot(papers, range(len(rows)), **OF_PAPER, label="the paper's mean")
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("training sequences until success, mean of trials that succeeded")
    figure.legend(fontsize=7, ncols=4, loc="outside upper center")
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
