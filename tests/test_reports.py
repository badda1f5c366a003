"""Reports of each kind of committed results."""

import re
import shutil

import pytest

from experiments.reports.report import KINDS, ROOT, modules_of, write_pages

pytestmark = pytest.mark.default


def linked(page):
    """Returns the pictures of a page, relative to it."""
    return re.findall(r"!\[[^]]*\]\((.*?)\)", page.read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_committed_pages_equal_the_output_of_the_command(kind, tmp_path):
    page, figures = modules_of(kind)
    (tmp_path / "docs").mkdir()
    for name in page.PAGES:
        shutil.copy(ROOT / "docs" / name, tmp_path / "docs")
    for written in write_pages(page, page.tables(), tmp_path):
        committed = ROOT / "docs" / written.name
        assert written.read_text() == committed.read_text()
        for link in linked(committed):
            assert (committed.parent / link).is_file()
    assert (ROOT / "docs" / figures.FOLDER).is_dir()
