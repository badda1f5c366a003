"""Figures of the committed results on data sets.

NAME              learning curves: losses of all readings of a config
NAME-confusion    confusion matrix of the test split, for one reading
NAME-film         forecast of one test film: a strip of its frames, and an animation
gradient-methods  learning curves of the configs that compare gradient methods
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.reports.data.page import confused
from experiments.reports.data.results import films_of, results_of
from experiments.settings.reading import data_names

FOLDER = "results"
# Configs whose readings are methods of the gradient.
METHODS = "order-of-two", "copying-30"


def draw() -> dict[str, Figure | Path]:
    """Draws the figures of all configs that have results; films are files."""
    drawn, films = {}, {}
    for name in data_names():
        found = results_of(name)
        reading = confused(found)
        if found:
            drawn[name] = draw_curves(found)
        if reading is not None:
            drawn[f"{name}-confusion"] = draw_confusion(reading, found[reading])
        films |= {f"{name}-{path.name}": path for path in films_of(name)}
    compared = {name: results_of(name) for name in METHODS}
    if all(compared.values()):
        drawn["gradient-methods"] = draw_methods(compared)
    return drawn | films


def draw_curves(found: dict[str, dict[str, Any]]) -> Figure:
    """Draws the validation loss, mean and range over networks, and the training loss.

    Args:
      found: results of one config by reading, at least one.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for k, (reading, result) in enumerate(found.items()):
        curve, color = result["curve"], f"C{k}"
        loss = {
            name: np.array(values, float)
            for name, values in curve["validation"]["loss"].items()
        }
        updates, train = curve["updates"], np.array(curve["train"], float)
        axes.plot(updates, loss["mean"], color=color, label=reading)
        axes.plot(updates, train, "--", color=color, linewidth=0.8)
        axes.fill_between(updates, loss["min"], loss["max"], color=color, alpha=0.25)
    axes.plot([], [], "--", color="0.4", linewidth=0.8, label="training batches")
    axes.set_yscale("log")
    axes.set_xlabel("updates")
    axes.set_ylabel("loss on the validation split: mean, range over networks")
    axes.set_title(next(iter(found.values()))["config"]["title"], parse_math=False)
    axes.legend()
    return figure


def draw_confusion(reading: str, result: dict[str, Any]) -> Figure:
    """Draws the confusion matrix of the test split, summed over networks.

    Args:
      reading: name of the reading.
      result: its result.
    """
    counts = np.sum(result["metrics"]["test"]["confusion"], axis=0)
    figure = Figure(figsize=(5.5, 5), layout="constrained")
    axes = figure.add_subplot()
    # Each row in shares of its class, which can have different numbers of sequences.
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if shares[row, column] > 0.5 else "black"
            where = {"ha": "center", "va": "center", "fontsize": 8}
            axes.text(column, row, f"{count:,}", color=color, **where)
    axes.set_xticks(range(len(counts)))
    axes.set_yticks(range(len(counts)))
    axes.set_xlabel("class given by the networks")
    axes.set_ylabel("class")
    networks = result["config"]["seeds"]
    summed = f", sum over {networks} networks" if networks > 1 else ""
    axes.set_title(f"{reading}: test sequences{summed}")
    return figure


def draw_methods(results: dict[str, dict[str, dict[str, Any]]]) -> Figure:
    """Draws the validation losses of each config.

    Args:
      results: by config, its results by reading.
    """
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    for k, found in enumerate(results.values()):
        axes = figure.add_subplot(1, len(results), k + 1)
        for result in found.values():
            curve = result["curve"]
            loss = np.array(curve["validation"]["loss"]["mean"], float)
            axes.plot(curve["updates"], loss, label=label(result))
        axes.set_yscale("log")
        axes.set_xlabel("updates")
        axes.set_ylabel("loss on the validation split, nats")
        axes.set_title(next(iter(found.values()))["config"]["title"], parse_math=False)
        axes.legend()
    return figure


def label(result: dict[str, Any]) -> str:
    """Returns the name of a method, with its number of steps."""
    model = result["config"]["model"]
    steps = model["gradient_steps"]
    return f"{model['gradient']} ({steps})" if steps else model["gradient"]
