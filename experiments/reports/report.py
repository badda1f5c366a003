"""Reports of the committed results: tables, pages of `docs`, and figures.

Each kind of results is a package. Its module `page` has `PAGES`, the files in `docs`,
and `tables()`, the Markdown tables by the names of their places in the pages; it can
have `texts()`, more parts, which the command line does not print. Its module `figures`
has `FOLDER`, a folder in `docs`, and `draw()`, figures or files by their names there.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
KINDS = "paper1997", "data", "league"


def modules_of(kind: str) -> tuple[ModuleType, ModuleType]:
    """Returns the modules `page` and `figures` of a kind of results."""
    package = f"experiments.reports.{kind}"
    return import_module(f"{package}.page"), import_module(f"{package}.figures")


def write_pages(
    page: ModuleType, tables: dict[str, str], root: Path = ROOT
) -> list[Path]:
    """Writes the tables and other parts into the pages, and returns their files.

    Args:
      page: the module `page` of the results.
      tables: the tables of `page.tables()`.
      root: folder of `docs`.
    """
    parts = tables | getattr(page, "texts", dict)()
    return [fill(root / "docs" / name, parts) for name in page.PAGES]


def write_figures(figures: ModuleType, root: Path = ROOT) -> list[Path]:
    """Draws the figures of the module `figures`, and returns their files."""
    # Imported here because a page needs no matplotlib.
    from experiments.reports.svg import save

    return save(figures.draw(), root / "docs" / figures.FOLDER)


def fill(page: Path, parts: dict[str, str]) -> Path:
    """Writes parts into a page, and returns the page.

    Args:
      page: the file. A part is between two comments with its name.
      parts: texts by name. Names that the page does not have are left out.
    """
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        mark = f"<!-- {name} -->"
        if mark in text:
            before, _, after = text.split(mark, 2)
            text = f"{before}{mark}\n\n{part}\n\n{mark}{after}"
    page.write_text(text, encoding="utf-8")
    return page
