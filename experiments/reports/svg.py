"""Figures as SVG files."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure


def save(drawn: dict[str, Figure | None], folder: Path) -> list[Path]:
    """Writes `FOLDER/NAME.svg` for each figure that is not None; returns the files."""
    folder.mkdir(exist_ok=True)
    written = []
    # The same results give the same files.
    with matplotlib.rc_context({"svg.hashsalt": folder.name, "svg.fonttype": "none"}):
        for name, figure in drawn.items():
            if figure is not None:
                written.append(folder / f"{name}.svg")
                figure.savefig(written[-1], metadata={"Date": None})
    return written
