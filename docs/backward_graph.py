"""Draws the pictures of docs/backward-graph.md, from the examples on the page.

    python docs/backward_graph.py    # writes docs/backward-graph/*.svg

Graphviz must be installed.

A picture `backward-graph/NAME.svg` shows the graph that the examples call NAME.
"""

import re
from pathlib import Path

from rnncells.diagnostics import BackwardGraph

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "backward-graph.md"


def run_examples() -> dict:
    """Runs the page's examples one after the other, and returns their names."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    namespace = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), namespace)
    return namespace


def pictures() -> dict[Path, BackwardGraph]:
    """Returns the graph that each picture on the page shows."""
    namespace = run_examples()
    names = re.findall(r"\]\(backward-graph/(\w+)\.svg\)", PAGE.read_text())
    folder = PAGE.with_suffix("")
    return {folder / f"{name}.svg": namespace[name] for name in names}


if __name__ == "__main__":
    for path, graph in pictures().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(graph.svg())
