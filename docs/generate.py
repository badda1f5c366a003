"""Writes the lists that follow from the code: `python docs/generate.py`.

From `rnncells/public.py`: the docstring of `rnncells`, the tables of docs/cells.md, the
entries of docs/api, and the stub of `rnncells.nnx`. From `rnncells/loops/table.py`: the
table of docs/engine.md. A test checks that they are current.
"""

import inspect
import re
import textwrap
from functools import partial
from pathlib import Path

import rnncells
import rnncells.nnx
from rnncells.loops.table import LOOPS

ROOT = Path(__file__).resolve().parent.parent
METHODS_OF_CELLS = (
    "parent, name, scope, setup, project, recur, carry_shape, num_feature_dims, "
    "coefficients, update, output, to_state, to_carry"
)
# Options of autodoc for the names under a heading of `rnncells/public.py`.
AUTODOC = {
    "Cells for one step": {"exclude-members": METHODS_OF_CELLS},
    "Cells that are linear": {"exclude-members": METHODS_OF_CELLS},
    "Wrappers and dropout": {"exclude-members": METHODS_OF_CELLS},
    "Layers": {
        "special-members": "__call__",
        "inherited-members": "Module, object, tuple",
    },
    "Gradient methods": {},
    "To write your own cell": {
        "special-members": "__call__",
        "exclude-members": "parent, name, scope, setup",
    },
}


def sections() -> dict[str, list[str]]:
    """Returns the public names under each heading of `rnncells/public.py`."""
    text = (ROOT / "rnncells" / "public.py").read_text()
    blocks = re.findall(r"^# (.*:)\n((?:from .*\n)+)", text, re.MULTILINE)
    return {head: re.findall(r" as (\w+)$", names, re.M) for head, names in blocks}


def names_under(start: str) -> list[str]:
    """Returns the names under the heading that starts with `start`."""
    (names,) = (n for head, n in sections().items() if head.startswith(start))
    return names


def summary(name: str) -> str:
    """Returns the first line of the docstring of a public name, without its period."""
    line = inspect.getdoc(getattr(rnncells, name)).partition("\n")[0]
    return line.removesuffix(".")


def reference(cls: type) -> str:
    """Returns a link to the first reference in the docstring of a class or its base."""
    for base in cls.__mro__:
        doc = " ".join((base.__doc__ or "").split())
        if match := re.search(r"References?: (.*?, \d{4}), (https?://\S+)", doc):
            return f"[{match[1]}]({match[2].rstrip('.,;')})"
    return ""


def help_text() -> str:
    """Returns the lists of the docstring of `rnncells`: names, and what modules are."""
    parts = []
    for head, names in sections().items():
        if any(map(inspect.ismodule, map(partial(getattr, rnncells), names))):
            rows = [
                line
                for name in names
                for line in _wrapped(summary(name), f"  {name:<15}", " " * 17)
            ]
        else:
            rows = _wrapped(", ".join(names), "  ", "  ")
        parts.append("\n".join([head, "", *rows]))
    return "\n\n".join(parts)


def _wrapped(text: str, first_indent: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, 76, initial_indent=first_indent, subsequent_indent=indent
    )


def table(start: str) -> str:
    """Returns a table of docs/cells.md, for the names under a heading."""
    rows = ["| cell | what it is | paper | file |", "|---|---|---|---|"]
    for name in names_under(start):
        cls = getattr(rnncells, name)
        file = cls.__module__.replace(".", "/") + ".py"
        link = f"[{Path(file).name}](../{file})"
        rows.append(f"| `{name}` | {summary(name)} | {reference(cls)} | {link} |")
    return "\n".join(rows)


def loops(_: str) -> str:
    """Returns the table of the loops over time, in the order of their choice."""
    rows = ["| loop | cells | options, beside the defaults |", "|---|---|---|"]
    for loop in LOOPS:
        cells = ", ".join(f"`{cell.__name__}`" for cell in loop.cells or ()) or "any"
        options = "; ".join(f"`{k}`: {', '.join(v)}" for k, v in loop.options.items())
        place = f"{type(loop).__module__.replace('.', '/')}.py:{type(loop).__name__}"
        rows.append(f"| {loop.name}, `{place}` | {cells} | {options} |")
    return "\n".join(rows)


def entries(start: str) -> str:
    """Returns the entries of a page of docs/api, for the names under a heading."""
    blocks = []
    for name in names_under(start):
        is_class = inspect.isclass(getattr(rnncells, name))
        lines = [f".. auto{'class' if is_class else 'function'}:: rnncells.{name}"]
        if is_class:
            lines += [f"   :{key}: {value}" for key, value in AUTODOC[start].items()]
        blocks.append("\n".join(["```{eval-rst}", *lines, "```"]))
    return "\n\n".join(blocks)


def stub() -> str:
    """Returns the stub of `rnncells.nnx`, whose classes are made in a loop."""
    text = inspect.getsource(rnncells.nnx)
    imports = re.findall(r"^from rnncells\.nnx\S+ import \w+ as \w+$", text, re.M)
    classes = sorted(
        name
        for name, value in vars(rnncells.nnx).items()
        if inspect.isclass(value) and value.__module__ == "rnncells.nnx"
    )
    classes = [f"class {name}(FromLinen): ..." for name in classes]
    head = "# Written by docs/generate.py."
    return "\n".join([head, "", *imports, "", *classes, ""])


def files() -> dict[Path, str]:
    """Returns the text that each file must have."""
    texts = {ROOT / "rnncells" / "nnx" / "__init__.pyi": stub()}
    path = ROOT / "rnncells" / "__init__.py"
    start, _, rest = path.read_text().partition("\nCells for one step")
    _, _, rest = rest.partition("\nMore submodules")
    texts[path] = f"{start}\n{help_text()}\n\nMore submodules{rest}"
    docs = ROOT / "docs"
    tables = {docs / "cells.md": table, docs / "engine.md": loops}
    for page in [*tables, *(docs / "api").glob("*.md")]:

        def block(match: re.Match[str], write=tables.get(page, entries)) -> str:
            return f"{match[1]}\n\n{write(match[2])}\n\n{match[4]}"

        pattern = r"(<!-- \w+: (.*?) -->)\n(.*?)\n(<!-- end -->)"
        texts[page] = re.sub(pattern, block, page.read_text(), flags=re.S)
    return texts


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
