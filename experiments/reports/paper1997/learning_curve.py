"""Learning curves of a run, as a figure."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.reports.tables import title_of
from experiments.runs.folder import read_metrics


def save_learning_curve(metrics: Path, result: dict[str, Any], path: Path) -> None:
    """Draws each trial's error over the training sequences, until it succeeds.

    Args:
      metrics: the run's `metrics.jsonl`.
      result: the contents of `result.json`.
      path: path of the PNG.
    """
    # Figure instead of pyplot: needs no global state and no display.
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    draw_learning_curve(figure.add_subplot(), metrics, result)
    figure.savefig(path, dpi=150)


def draw_learning_curve(axes: Any, metrics: Path, result: dict[str, Any]) -> None:
    """Draws the figure of `save_learning_curve` into `axes`."""
    lines = read_metrics(metrics)
    for trial in result["trials"]:
        number = trial["trial"]
        curve = [
            (line["sequences"], line["error"][line["trials"].index(number)])
            for line in lines
            if number in line["trials"]
        ]
        sequences, error = np.array(curve, float).T
        axes.plot(sequences, error, color="C0", alpha=0.4, linewidth=1)
        if trial["solved"]:
            axes.plot(sequences[-1], error[-1], "o", color="C0", markersize=4)
    config = result["config"]
    axes.axvline(
        config["paper"]["sequences"][-1],
        color="C3",
        label="success in the paper (mean)",
    )
    solved = [trial["sequences"][-1] for trial in result["trials"] if trial["solved"]]
    if solved:
        axes.axvline(np.mean(solved), color="C0", label="success here (mean)")
    axes.set_xscale("log")
    axes.set_xlabel("training sequences")
    axes.set_ylabel("mean absolute error")
    title = f"{title_of(result)}: {len(result['trials'])} trials"
    axes.set_title(title, parse_math=False)
    axes.legend()
