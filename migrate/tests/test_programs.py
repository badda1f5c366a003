"""Programs by other authors: the README's table, and a second run."""

import re
from functools import cache
from pathlib import Path

import pytest
from rnncells_migrate.rewrite import marks, rewrite

HERE = Path(__file__).resolve().parent
PROGRAMS = {p.stem: p.read_text() for p in sorted(HERE.glob("old_programs/*.py"))}
rewrite = cache(rewrite)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_run_changes_nothing(name):
    new = rewrite(PROGRAMS[name])[0]
    assert new != PROGRAMS[name] and rewrite(new)[0] == new


def test_the_readme_lists_what_becomes_of_each_program():
    readme = (HERE.parent / "README.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (rewritten|marked) \|", readme, re.M))
    left = {name: len(marks(rewrite(source)[0])) for name, source in PROGRAMS.items()}
    assert rows == {n: "marked" if left[n] else "rewritten" for n in PROGRAMS}
