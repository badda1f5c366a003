"""The figure of the league: every cell on every task."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.reports.league.page import (
    deviation,
    heading,
    is_better_large,
    mean,
    mean_ranks,
)
from experiments.reports.league.results import league_results

FOLDER = "league"
# Losses that differ more than this are on a logarithmic axis.
RATIO = 10


def draw() -> dict[str, Figure]:
    """Draws the figure, if there are results."""
    found = league_results()
    return {"league": draw_league(found)} if found else {}


def draw_league(found: dict[str, dict[str, Any]]) -> Figure:
    """Draws a panel for each task, with a row for each cell, the best cell on top.

    Args:
      found: the results by task, at least one.
    """
    order = list(mean_ranks(found))
    size = (1.6 + 2.2 * len(found), 1.4 + 0.24 * len(order))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for panel, of in zip(panels, found.values(), strict=True):
        _draw_task(panel, of, order)
    panels[0].set_yticks(range(len(order)), order, fontsize=8)
    panels[0].invert_yaxis()
    return figure


def _draw_task(axes: Axes, task: dict[str, Any], order: list[str]) -> None:
    settings, drawn = task["settings"], []
    for row, cell in enumerate(order):
        one = task["cells"].get(cell, {})
        value = mean(one) if one else None
        if value is not None:
            drawn += one["values"]
            axes.plot(one["values"], [row] * len(one["values"]), "|", color="0.5")
            bar = {"color": "black", "ms": 4, "lw": 1}
            axes.errorbar(value, row, xerr=deviation(one), fmt="o", **bar)
        elif one:
            # In the middle of the panel, at the height of the row.
            where = {"transform": axes.get_yaxis_transform(), "fontsize": 7}
            axes.text(0.5, row, "failed", ha="center", va="center", **where)
    compared = settings["published"]["value"]
    axes.axvline(compared, color="0.5", linestyle="--", linewidth=1)
    positive = [value for value in [*drawn, compared] if value > 0]
    is_wide = math.isfinite(max(positive)) and max(positive) > RATIO * min(positive)
    if is_wide and not is_better_large(settings):
        axes.set_xscale("log")
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    title, _, rest = heading(task).partition(": ")
    axes.set_title(title, fontsize=8)
    axes.set_xlabel(rest.replace(", ", ",\n"), fontsize=7)
    axes.tick_params(axis="x", labelsize=7)
