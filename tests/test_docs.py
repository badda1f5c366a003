"""The pages are true: examples run, links exist, tables and versions are current."""

import importlib.util
import re
import tomllib
import warnings
from pathlib import Path

import matplotlib
import pytest
import yaml
from levels import by_level

import rnncells
import rnncells.nnx

pytestmark = pytest.mark.default

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if "_build" not in path.parts
)
# Their examples run elsewhere: in test_backward_graph.py and test_old_programs.py.
ELSEWHERE = {"backward-graph.md", "migration.md"}
# Indented blocks are quotations of code.
BLOCK = re.compile(r"^```python\n(\S.*?)^```", re.DOTALL | re.MULTILINE)


def blocks_of(page):
    return BLOCK.findall((DOCS / page).read_text())


# Pages that take seconds; every run starts as new readers do.
LONG = ["diagnostics.md", "gradients.md", "newton.md", "scaling.md"]
LONG += [f"how-to/{name}.md" for name in ("look-inside", "memory", "nnx")]
LONG += [f"how-to/{name}.md" for name in ("sharding", "streaming")]


def page_with_examples(page):
    has_mesh = any("make_mesh" in block for block in blocks_of(page))
    marks = [pytest.mark.several_devices] * has_mesh
    marks += [pytest.mark.exhaustive] * (page in LONG)
    return pytest.param(page, marks=marks)


@pytest.mark.parametrize("page", [page_with_examples(p) for p in PAGES if blocks_of(p)])
def test_examples_of_page_run(page):
    """One after the other, as a reader runs them."""
    if page in ELSEWHERE:
        tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
        assert f'"{page}"' in tests
        return
    names = {"__name__": "__main__"}
    with matplotlib.rc_context({"backend": "agg"}), warnings.catch_warnings():
        for block in blocks_of(page):
            exec(compile(block, page, "exec"), names)


def targets(text):
    """Yields the targets of the links and included files of a page."""
    without_code = re.sub(
        r"^```(?!\{).*?^```", "", text, flags=re.DOTALL | re.MULTILINE
    )
    yield from re.findall(r"\]\(([^)\s]+)\)", without_code)
    yield from re.findall(r"^```\{literalinclude\} (\S+)$", text, re.MULTILINE)


@pytest.mark.parametrize("page", ["../README.md", *PAGES])
def test_links_inside_of_the_repository_exist(page):
    path = DOCS / page
    for target in targets(path.read_text()):
        if re.match(r"https?://[\w.-]+(/\S*)?$", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)", linked.read_text(), re.MULTILINE)
            anchors = {
                re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles
            }
            assert anchor in anchors, target


def test_api_reference_has_every_public_name():
    text = "\n".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    listed = set(re.findall(r"(?:autoclass|autofunction|automodule):: (\S+)", text))
    names = {f"rnncells.{name}" for name in rnncells.__all__}
    names |= {f"rnncells.nnx.{n}" for n in ("FromLinen", "from_linen", "to_linen")}
    assert names - listed == set()
    modules = re.findall(r"`(\w+)\.\w+`", rnncells.interop.__doc__)
    assert {f"rnncells.interop.{name}" for name in modules} <= listed


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


def test_layout_lists_existing_paths():
    page = (ROOT / "docs" / "layout.md").read_text()
    layout = re.search(r"```\n(rnncells/public.py.*?)```", page, re.DOTALL)[1]
    for line in layout.splitlines():
        assert (ROOT / line.split()[0]).exists(), line


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = EXTRAS["optional-dependencies"]


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## ([\d.]+) - (\S+)$", changes, re.MULTILINE)
    assert citation["version"] == newest[1] == rnncells.__version__
    assert str(citation["date-released"]) == newest[2]


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


EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


# Name: a short setting, and a condition on what `main` returns.
SHORT = {
    "actor_critic": (
        {"updates": 2, "steps": 10, "test_steps": 20},
        lambda ours, idiom: ours == idiom > 0,
    ),
    "character_model": (
        {
            **{"updates": 2, "features": 4, "batch": 4, "time": 8},
            **{"valid_windows": 1, "sample": 20},
        },
        # 64 symbols: 4.16 is a guess.
        lambda loss, text: loss < 4.2 and len(text) == 20,
    ),
    "conv_lstm_forecast": (
        {"updates": 2, "features": 2, "batch": 2},
        lambda *errors: min(errors) > 0,
    ),
    "export_serving": ({"features": 4, "time": 3}, lambda *d: max(d) < 1e-5),
    "from_pytorch": (
        {"updates": 3, "batch": 4, "time": 5},
        lambda before, after: after < before,
    ),
    "mixed_precision": (
        {"updates": 2, "features": 4, "batch": 4, "time": 6},
        lambda losses, dtypes: (
            abs(losses["float32"] - losses["bfloat16"]) < 0.1 and dtypes == {"float32"}
        ),
    ),
    "nnx_training": (
        {"updates": 20, "features": 8},
        lambda before, after: before == after > 0.11,  # a guess
    ),
    "own_cell": (
        {"updates": 2, "features": 4, "batch": 4, "time": 6},
        lambda report, error: report.ok and error < 1,
    ),
    "quantiles": (
        {"updates": 2, "networks": 2, "features": 2, "weeks": 800},
        lambda *found: all(
            0 < error < 100 and 0 < inside < 1 for error, inside in found
        ),
    ),
    "sequence_to_sequence": (
        {"updates": 2, "features": 4, "batch": 2, "test_count": 2, "beam_size": 2},
        lambda greedy, beam: beam[1] >= greedy[1] - 1e-5,
    ),
    "tagger": (
        {"updates": 2, "features": 4, "batch": 6, "rows": 6, "test_count": 6},
        lambda difference, accuracy: difference < 1e-5 and accuracy > 0.4,
    ),
}


def test_every_example_has_a_short_setting():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SHORT.keys()


@pytest.mark.parametrize("name", by_level(SHORT, ["from_pytorch"]))
def test_example_runs(name, capsys):
    path = EXAMPLES / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    setting, is_right = SHORT[name]
    result = module.main(**setting)
    if name == "sequence_to_sequence":
        result = result["greedy"], result["beam"]
    assert is_right(*result)
    assert capsys.readouterr().out
