"""Figures of the paper's rows, from the committed results.

sequences    sequences until success by verdict: the paper's means, and our trials
curves       errors on training sequences: median and quartiles of the trials
baselines    sequences until success, for modern networks

`network_figures.py` has those of what networks do.
"""

from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.reports.committed import LITERAL
from experiments.reports.paper1997 import network_figures
from experiments.reports.paper1997.page import deciding
from experiments.reports.paper1997.results import Outcome, outcomes
from experiments.reports.paper1997.tables import reached
from experiments.settings.reading import (
    baselines,
    paper_names,
)

FOLDER = "paper1997"
OURS, WRITTEN, PAPERS = *network_figures.COLORS, "black"
OF_PAPER = {"marker": "|", "ls": "", "color": PAPERS, "ms": 12, "mew": 2}
SUCCESS = {"marker": ".", "ls": "", "ms": 6, "alpha": 0.6}
EARLIER = {"marker": "o", "ls": "", "ms": 4, "mfc": "none", "alpha": 0.6}
FAILURE = {"marker": "x", "ls": "", "ms": 5, "alpha": 0.6}
# In the order of the panels.
WORDS = "reproduced", "learnt, slower", "partly", "never"


def draw() -> dict[str, Figure | None]:
    """Draws all figures; None: there is nothing to draw."""
    found = {name: outcomes(name) for name in paper_names()}
    decided = {name: deciding(of_row)[1] for name, of_row in found.items()}
    shown = {name: outcome for name, outcome in decided.items() if outcome}
    drawn = {
        "sequences": draw_sequences(found),
        "curves": draw_curves(shown),
        "baselines": draw_baselines(found),
    }
    return drawn | network_figures.draw(shown)


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
