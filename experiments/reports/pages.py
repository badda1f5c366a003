"""Pages of Markdown with parts that the command line writes."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def fill(page: Path, made: dict[str, str]) -> Path:
    """Writes parts into a page, and returns the page.

    Args:
      page: the file. A part is between two comments with its name.
      made: texts by name. Names that the page does not have are left out.
    """
    text = page.read_text(encoding="utf-8")
    for name, part in made.items():
        mark = f"<!-- {name} -->"
        if mark in text:
            before, _, after = text.split(mark, 2)
            text = f"{before}{mark}\n\n{part}\n\n{mark}{after}"
    page.write_text(text, encoding="utf-8")
    return page
