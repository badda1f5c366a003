"""Files beside the code agree with it."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import rnncells

pytestmark = pytest.mark.default

ROOT = Path(__file__).resolve().parent.parent
YAML = [ROOT / "CITATION.cff", ROOT / ".pre-commit-config.yaml"]
YAML += [ROOT / ".pre-commit-hooks.yaml", *(ROOT / ".github").rglob("*.yml")]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = EXTRAS["optional-dependencies"]


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## ([\d.]+) - (\S+)$", changes, re.MULTILINE)
    assert citation["version"] == newest[1] == rnncells.__version__
    assert str(citation["date-released"]) == newest[2]


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_is_valid(path):
    assert yaml.safe_load(path.read_text())


def test_guide_names_existing_files_tests_and_extras():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(
        r"`((?:rnncells|tests|docs|configs|experiments)/[\w./]*)`", guide
    )
    paths += re.findall(r"\]\((?!http)([^)#]+)\)", guide)
    paths += re.findall(r"(?:pytest|python)(?: -n 0)? ((?:tests|docs)/\S+\.py)", guide)
    assert len(paths) > 12
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for extras in re.findall(r"\.\[([\w,]+)\]", guide):
        assert set(extras.split(",")) <= EXTRAS.keys()
