"""Figures as SVG files."""

import shutil
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure


def save(drawn: dict[str, Figure | Path | None], folder: Path) -> list[Path]:
    """Writes `FOLDER/NAME.svg` for each figure, and copies files to `FOLDER/NAME`.

    Returns:
      The new files. None is left out.
    """
    folder.mkdir(exist_ok=True)
    written = []
    # The same results give the same files.
    with matplotlib.rc_context({"svg.hashsalt": folder.name, "svg.fonttype": "none"}):
        for name, figure in drawn.items():
            if isinstance(figure, Path):
                written.append(shutil.copy(figure, folder / name))
            elif figure is not None:
                written.append(folder / f"{name}.svg")
                figure.savefig(written[-1], metadata={"Date": None})
    return written
