"""The page on the committed results on data sets, docs/results.md."""

import textwrap
from typing import Any

from experiments.reports.data.results import films_of, results_of
from experiments.reports.data.tables import committed_table
from experiments.settings.reading import (
    config_header,
    config_path,
    data_names,
    read_config,
    readings,
    toml_lines,
)

PAGES = ("results.md",)
WIDTH = 120
NONE = "No results are committed yet."
COMMANDS = "Run: ", "Then: "


def tables() -> dict[str, str]:
    """Returns the Markdown table of all committed results, under `results`."""
    found = [result for name in data_names() for result in results_of(name).values()]
    return {"results": committed_table(found) if found else NONE}


def texts() -> dict[str, str]:
    """Returns the sections on each config, under `configs`."""
    return {"configs": sections()}


def sections() -> str:
    """Returns the text, the readings and the pictures of each config."""
    return "\n\n".join(_section(name, results_of(name)) for name in data_names())


def _section(name: str, found: dict[str, Any]) -> str:
    path = config_path(name)
    lines = [x.removeprefix("#").strip() for x in config_header(path).splitlines()]
    commands = [
        line.removeprefix(word)
        for line in lines
        for word in COMMANDS
        if line.startswith(word)
    ]
    text = " ".join(line for line in lines if not line.startswith(COMMANDS))
    parts = [f"## {read_config(path).title}", f"`{name}`. {text}"]
    others = [
        f"`{reading}` ({', '.join(toml_lines(one.changes))})"
        for reading, one in readings(path).items()
    ]
    if others:
        parts.append(f"Other readings: {', '.join(others)}.")
    parts = [_wrapped(part) for part in parts]
    if commands:
        parts.append("\n".join(["```sh", *commands, "```"]))
    return "\n\n".join([*parts, *_pictures(name, found)])


def _pictures(name: str, found: dict[str, Any]) -> list[str]:
    """Returns the links to the pictures that `figures.draw` makes."""
    pictures = []
    if found:
        pictures.append(f"![Learning curves of {name}](results/{name}.svg)")
    if confused(found) is not None:
        shown = f"results/{name}-confusion.svg"
        pictures.append(f"![Confusion matrix of {name}]({shown})")
    for path in films_of(name):
        pictures.append(f"![Forecast of {name}](results/{name}-{path.name})")
    return pictures


def confused(found: dict[str, Any]) -> str | None:
    """Returns the first reading that has a confusion matrix of the test split."""
    return next(
        (r for r, of in found.items() if "confusion" in of["metrics"].get("test", {})),
        None,
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
