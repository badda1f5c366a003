"""Pictures of a forecast film: a strip of its frames, and an animation."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from experiments.runs.folder import FILM_ANIMATION, FILM_STRIP

# Pixels of the animation for each pixel of a frame, and milliseconds for each frame.
SCALE, DURATION = 4, 200


def save_film(folder: Path, film: np.ndarray, forecast: np.ndarray) -> None:
    """Writes `film.png` and `film.gif`, with the truth above the forecast.

    Args:
      folder: folder for the two files.
      film: all true frames, `(time, height, width)`, in [0, 1].
      forecast: the frames after the given ones, `(asked, height, width)`.
    """
    draw_film(film, forecast).savefig(folder / FILM_STRIP, dpi=150)
    frames = [
        Image.fromarray(np.uint8(255 * frame)).resize(
            (SCALE * frame.shape[1], SCALE * frame.shape[0]), Image.Resampling.NEAREST
        )
        for frame in side_by_side(film, forecast)
    ]
    frames[0].save(
        folder / FILM_ANIMATION,
        save_all=True,
        append_images=frames[1:],
        duration=DURATION,
        loop=0,
    )


def side_by_side(film: np.ndarray, forecast: np.ndarray) -> np.ndarray:
    """Returns frames with the truth on the left, `(time, height, 2 * width + 2)`.

    On the right is the forecast, after the given frames.
    """
    given = len(film) - len(forecast)
    line = np.ones((*film.shape[:2], 2))
    right = np.concatenate([film[:given], np.clip(forecast, 0, 1)])
    return np.concatenate([film, line, right], axis=2)


def draw_film(film: np.ndarray, forecast: np.ndarray) -> Figure:
    """Draws the frames of a film as a strip; see `save_film`."""
    given, time = len(film) - len(forecast), len(film)
    figure = Figure(figsize=(0.6 * time, 1.5), layout="constrained")
    axes = figure.subplots(2, time, squeeze=False)
    for row, (name, first, frames) in enumerate(
        [("truth", 0, film), ("forecast", given, forecast)]
    ):
        for column in range(time):
            panel = axes[row, column]
            panel.axis("off")
            if column >= first:
                panel.imshow(frames[column - first], cmap="gray", vmin=0, vmax=1)
                panel.set_title(f"{column + 1}", fontsize=6, pad=2)
        axes[row, first].set_title(f"{name} {first + 1}", fontsize=6, pad=2)
    return figure
