"""What docs/migration.md shows is what the command makes, and runs as it did."""

import ast
import re
from pathlib import Path

import pytest
from programs import assert_same, run, with_imports_of

from rnncells.migrate.migration import migrate

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "migration.md").read_text()
HEAD = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)[1]
PATTERNS = {
    title: (before, after)
    for title, before, after in re.findall(
        r"## (\d+\. .*?)\n.*?```python\n(.*?)```\n\nbecomes\n\n```python\n(.*?)```",
        GUIDE,
        re.DOTALL,
    )
}
RUN = [
    title for title, (before, _) in PATTERNS.items() if "result = None" not in before
]
END = "\n\ndef run():\n    return result\n"


def test_guide_shows_all_patterns():
    assert [int(title.partition(".")[0]) for title in PATTERNS] == list(range(1, 20))
    assert len(RUN) == 17


@pytest.mark.parametrize("title", PATTERNS)
def test_what_is_shown_is_what_the_command_makes(title):
    before, after = (HEAD + part for part in PATTERNS[title])
    made = migrate(before.encode()).data.decode()
    # The guide is formatted, lines that got long too.
    assert ast.unparse(ast.parse(made)) == ast.unparse(ast.parse(after))
    assert re.findall(r"#.*", made) == re.findall(r"#.*", after)


@pytest.mark.parametrize("title", RUN)
def test_what_is_shown_runs_as_it_did(title):
    before, after = (HEAD + part + END for part in PATTERNS[title])
    assert_same(
        run("after", after), run("before", with_imports_of("old_linen", before))
    )
