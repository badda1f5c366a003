"""What the README says is true: its example runs, its commands are those of CI."""

import re
import tomllib
from pathlib import Path

import pytest

import rnncells

pytestmark = pytest.mark.default

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_first_command_installs_the_packages_of_the_examples():
    extra = re.search(r"'\.\[(\w+)\]' && python -m experiments run", README)[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # `serialize` in the examples needs flatbuffers.
    assert "rnncells[export]" in project["optional-dependencies"][extra]


def rows_of(text):
    """Returns the entries of the rows of tables, without quartiles in parentheses."""
    rows = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [[re.sub(r" \(.*\)", "", c.strip()) for c in row.split("|")] for row in rows]


@pytest.mark.parametrize(
    "page, columns",
    [
        ("benchmarks-jax-0.12", {"Flax": "flax", "Haiku": "haiku", "Keras": "keras"}),
        ("benchmarks-jax-0.12", {"Equinox": "equinox"}),
        ("benchmarks", {"PyTorch": "torch"}),
    ],
)
def test_table_of_speed_has_the_numbers_of_the_benchmarks(page, columns):
    measured = (ROOT / "docs" / f"{page}.md").read_text()
    measured = measured.partition("Gradient by parameters and inputs")[2]
    titles, _, *rows = rows_of(
        measured.partition("\n\n\n")[0].partition("\nCompile")[0]
    )
    entries = {(row[0], row[2]): dict(zip(titles, row)) for row in rows}
    speed = README.partition("## Speed")[2].partition("## More")[0]
    heads, _, *own_rows = rows_of(speed)
    assert len(own_rows) >= 5
    for row in own_rows:
        own = dict(zip(heads, row))
        theirs = entries[row[0], row[1].replace(" → ", "→")]
        for ours, name in columns.items():
            assert own[ours] == theirs.get(name, "-"), (row, ours)


def test_table_of_cells_is_complete_and_its_files_exist():
    page = (ROOT / "docs" / "cells.md").read_text()
    cells = {name for name in dir(rnncells) if name.endswith("Cell")}
    assert cells == set(re.findall(r"`(\w+Cell)`(?=[^\n]*\.py\))", page))


def test_layout_lists_existing_paths():
    page = (ROOT / "docs" / "layout.md").read_text()
    layout = re.search(r"```\n(rnncells/public.py.*?)```", page, re.DOTALL)[1]
    for line in layout.splitlines():
        assert (ROOT / line.split()[0]).exists(), line
