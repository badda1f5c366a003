"""Examples of the pages in `docs` run, one after the other in each page."""

import re
from pathlib import Path

import matplotlib
import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = ["diagnostics", "gradients"]


@pytest.mark.parametrize("name", PAGES)
def test_examples_of_page_run(name):
    text = (DOCS / f"{name}.md").read_text()
    # Indented blocks are quotations of code.
    blocks = re.findall(r"^```python\n(\S.*?)^```", text, re.DOTALL | re.MULTILINE)
    names = {}
    assert len(blocks) >= 3
    with matplotlib.rc_context({"backend": "agg"}):
        for block in blocks:
            exec(compile(block, f"{name}.md", "exec"), names)
