"""The figure of docs/gradients.md: learning curves by the method of the gradient."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

# Configs whose readings are methods.
CONFIGS = ("order-of-two", "copying-30")


def draw(results: dict[str, dict[str, dict[str, Any]]]) -> Figure:
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
