"""Who may import whom, and what every public name owes its users."""

import ast
import dataclasses
import inspect
import re
import sys
from pathlib import Path

import flax.linen as nn
import pytest

import rnncells

ROOT = Path(__file__).resolve().parent.parent
FLAX = ["chex", "flax.core", "flax.errors", "flax.linen", "flax.typing", "jax", "numpy"]
# Each part, the most exact first, and what it may import beside the standard library.
# What cells and layers share.
CONTRACT = [
    "rnncells._argument_hints",
    "rnncells.cells.any_cell",
    "rnncells.cells.any_step",
    "rnncells.cells.base",
    "rnncells.cells.carry",
    "rnncells.cells.checks",
    "rnncells.cells.parameters",
    "rnncells.cells.input_spec",
    "rnncells.initializers",
    "rnncells._user_warning",
]
ALLOWED = {
    # Names are imported at their first use: the command runs without jax.
    "rnncells/__init__.py": ["rnncells._lazy", "rnncells.public"],
    "rnncells/_lazy.py": [],
    "rnncells/cells/__init__.py": ["rnncells._lazy"],
    "rnncells/interop/__init__.py": ["rnncells._lazy"],
    "rnncells/layers/__init__.py": ["rnncells._lazy"],
    "rnncells/public.py": ["rnncells"],
    "rnncells/recurrence": ["chex", "jax", "numpy", "rnncells.recurrence"],
    "rnncells/initializers.py": ["chex", "flax.typing", "jax"]
    + ["rnncells.cells.checks", "rnncells._user_warning"]
    + ["rnncells.recurrence.pytrees"],
    "rnncells/reference": ["jax", "rnncells.reference"],
    "rnncells/packing": [
        "chex",
        "jax",
        "numpy",
        "rnncells.cells.carry",
        "rnncells.cells.checks",
        "rnncells.layers.checks",
        "rnncells.packing",
        "rnncells.recurrence.masks",
    ],
    "rnncells/cells/carry.py": ["chex", "flax.typing", "jax", "numpy"]
    + ["rnncells.recurrence.pytrees"],
    "rnncells/cells/input_spec.py": ["chex", "flax.typing", "jax", "numpy"]
    + ["rnncells.recurrence.pytrees"],
    "rnncells/cells/checks.py": ["chex", "flax.errors", "flax.typing", "jax", "numpy"]
    + ["rnncells.cells.carry", "rnncells.cells.input_spec"],
    "rnncells/cells/parameters.py": [*FLAX, "rnncells.cells.checks"],
    "rnncells/cells/any_cell.py": [
        *FLAX,
        "rnncells.cells.carry",
        "rnncells.cells.checks",
        "rnncells.cells.input_spec",
        "rnncells.recurrence",
        "rnncells._user_warning",
    ],
    "rnncells/cells/base.py": [
        *FLAX,
        "rnncells._argument_hints",
        "rnncells.cells.any_cell",
        "rnncells.cells.carry",
        "rnncells.cells.checks",
        "rnncells.cells.parameters",
        "rnncells.cells.input_spec",
        "rnncells.initializers",
        "rnncells.recurrence",
        "rnncells._user_warning",
    ],
    "rnncells/cells": [
        *FLAX,
        *CONTRACT,
        "rnncells.cells.fields",
        "rnncells.recurrence",
    ],
    "rnncells/_argument_hints.py": ["rnncells.public"],
    "rnncells/_user_warning.py": ["flax", "jax"],
    # Cells that are made of others.
    "rnncells/cells/variational.py": [*FLAX, *CONTRACT]
    + ["rnncells.cells.gru", "rnncells.cells.lstm"],
    "rnncells/cells/zoneout.py": [*FLAX, *CONTRACT, "rnncells.cells.wrapper"],
    "rnncells/cells/drop_connect.py": [*FLAX, *CONTRACT, "rnncells.cells.wrapper"],
    # Cells that are linear in their carry.
    "rnncells/cells/min_gru.py": [*FLAX, "rnncells.cells.linear"],
    "rnncells/cells/qrnn.py": [*FLAX, *CONTRACT, "rnncells.cells.linear"],
    "rnncells/cells/lru.py": [*FLAX, *CONTRACT, "rnncells.cells.linear"]
    + ["rnncells.recurrence"],
    "rnncells/cells/delta_net.py": [*FLAX, *CONTRACT, "rnncells.cells.matrix"]
    + ["rnncells.recurrence"],
    "rnncells/cells/mlstm.py": [*FLAX, *CONTRACT, "rnncells.cells.matrix"]
    + ["rnncells.recurrence"],
    "rnncells/cells/slstm.py": [*FLAX, *CONTRACT, "rnncells.cells.fields"]
    + ["rnncells.cells.mlstm", "rnncells.recurrence"],
    "rnncells/layers/causal_conv_loop.py": [
        *FLAX,
        *CONTRACT,
        "rnncells.cells.causal_conv",
        "rnncells.layers",
        "rnncells.recurrence",
    ],
    # Blocks are made of certain cells.
    "rnncells/layers/xlstm_block.py": [*FLAX, "rnncells.cells", "rnncells.layers"],
    "rnncells/layers/griffin_block.py": [*FLAX, "rnncells.cells", "rnncells.layers"],
    "rnncells/layers/newton_loop.py": [*FLAX, *CONTRACT]
    + ["rnncells.layers", "rnncells.recurrence"],
    "rnncells/layers/linear_loop.py": [
        *FLAX,
        *CONTRACT,
        "rnncells.cells.linear",
        "rnncells.cells.matrix",
        "rnncells.gradients",
        "rnncells.layers",
        "rnncells.recurrence",
    ],
    # The same cells, with a gate more.
    "rnncells/cells/lstm2000.py": ["chex", "jax", "rnncells.cells.carry"]
    + ["rnncells.cells.lstm1997"],
    "rnncells/testing.py": [*FLAX, "rnncells"],
    # They read everything; nothing reads them.
    "rnncells/diagnostics": [*FLAX, "rnncells"],
    "rnncells/plots.py": ["matplotlib", "numpy"],
    "rnncells/diagnostics/graph": ["chex", "flax.linen", "jax", "numpy"]
    + ["rnncells.diagnostics.graph", "rnncells.recurrence"],
    # NNX's face of linen modules; nothing imports it.
    "rnncells/nnx/__init__.py": [*FLAX, "flax", "rnncells.nnx", "rnncells.public"],
    "rnncells/nnx": [
        *FLAX,
        "flax",
        "rnncells.cells",
        "rnncells.interop.loading",
        "rnncells.layers.multi_layer",
        "rnncells.layers.states",
        "rnncells.nnx",
        "rnncells.testing",
    ],
    "rnncells/layers": [
        *FLAX,
        *CONTRACT,
        "rnncells.gradients",
        "rnncells.layers",
        "rnncells.recurrence",
    ],
    # How a layer forms its gradient; layers import it.
    "rnncells/gradients.py": [
        *FLAX,
        "rnncells.cells.carry",
        "rnncells.cells.checks",
        "rnncells.cells.stacked",
        "rnncells.recurrence",
    ],
    # Layers of cells that have names.
    "rnncells/layers/torch_style.py": [
        *FLAX,
        "rnncells.cells",
        "rnncells.cells.checks",
        "rnncells.layers",
    ],
    "rnncells/legacy/_notice.py": ["flax", "jax"],
    "rnncells/legacy": [
        *FLAX,
        "rnncells.cells.base",
        "rnncells.cells.carry",
        "rnncells.cells",
        "rnncells.layers",
        "rnncells.legacy",
        "rnncells.recurrence.pytrees",
    ],
    "rnncells/__main__.py": ["rnncells._command"],
    "rnncells/_command.py": ["rnncells.__version__", "rnncells.interop"],
    "rnncells/interop/renamed_files.py": [
        "flax.serialization",
        "flax.traverse_util",
        "rnncells.interop",
    ],
    "rnncells/interop/files.py": [
        "flax.traverse_util",
        "numpy",
        "rnncells.interop",
        "safetensors",
    ],
    "rnncells/interop": [
        *FLAX,
        "flax.traverse_util",
        "rnncells.cells.base",
        "rnncells.cells",
        "rnncells.interop",
        "rnncells.layers",
    ],
    # Public names alone, as in programs of users.
    "examples": ["flax.linen", "jax", "numpy", "optax", "rnncells", "torch"]
    + ["flax.nnx", "orbax.checkpoint"],
    "benchmarks/plot.py": ["benchmarks", "matplotlib"],
    "benchmarks/pytorch.py": ["benchmarks", "jax", "numpy", "torch"],
    "benchmarks/peers.py": ["benchmarks", "equinox", "haiku", "jax", "keras"],
    "benchmarks/online.py": ["benchmarks", "experiments", "jax", "numpy", "rnncells"]
    + ["torch"],
    "benchmarks/newton.py": ["benchmarks", "jax", "numpy", "optax", "rnncells"],
    "benchmarks": ["benchmarks", "flax", "jax", "numpy", "rnncells"],
    "experiments/settings/options.py": ["experiments.settings", "pydantic", "tyro"],
    "experiments/settings/wording.py": [],
    "experiments/settings": ["experiments.settings", "pydantic"],
    # Files are read and checked without jax.
    "experiments/datasets/files.py": ["experiments.settings.rules"],
    "experiments/datasets/idx.py": ["experiments.settings.rules", "numpy"],
    "experiments/datasets": ["experiments.datasets", "experiments.settings.rules"]
    + ["jax", "numpy"],
    "experiments/paper1997/tasks": [
        "experiments.settings.tasks",
        "experiments.paper1997.tasks",
    ]
    + ["jax", "numpy"],
    "experiments/paper1997/tasks/reber_sets.py": [
        "experiments.settings",
        "experiments.paper1997.tasks",
    ]
    + ["jax", "numpy"],
    "experiments/paper1997/learners/network.py": ["jax"],
    "experiments/paper1997/learners/online.py": [
        "experiments.paper1997.learners.network",
        "jax",
    ],
    "experiments/paper1997/learners": [
        "experiments.paper1997.learners",
        "experiments.settings",
        "experiments.paper1997.tasks",
        "flax.linen",
        "jax",
        "optax",
        "rnncells",
    ],
    "experiments/runs/folder.py": ["experiments.settings"],
    # The only file that knows Orbax.
    "experiments/runs/checkpoint.py": [
        "experiments.runs.checksums",
        "experiments.runs.checkpoint_arrays",
        "experiments.runs.processes",
        "experiments.settings",
        "jax",
        "numpy",
        "orbax.checkpoint",
    ],
    "experiments/runs/checksums.py": [],
    "experiments/runs/checkpoint_arrays.py": ["jax", "numpy"],
    "experiments/runs/interruption.py": [],
    "experiments/runs/processes.py": ["experiments.settings", "jax", "numpy"],
    "experiments/runs/progress.py": ["rich"],
    "experiments/paper1997/training": [
        "experiments.runs.checkpoint",
        "experiments.runs.folder",
        "experiments.runs.interruption",
        "experiments.runs.progress",
        "experiments.paper1997.learners",
        "experiments.settings",
        "experiments.paper1997.tasks",
        "experiments.paper1997.training",
        "jax",
        "numpy",
    ],
    # Of the reports, only figures of networks and the numbers of units need jax.
    "experiments/reports/conditions.py": ["experiments.paper1997.tasks"]
    + ["experiments.reports", "experiments.settings"],
    "experiments/reports/network_figures.py": [
        *("experiments.paper1997", "experiments.reports", "experiments.settings"),
        *("jax", "matplotlib", "numpy"),
    ],
    "experiments/reports/figures.py": ["experiments", "matplotlib", "numpy"],
    "experiments/reports/film.py": ["PIL", "experiments.runs.folder", "matplotlib"]
    + ["numpy"],
    "experiments/reports/learning_curve.py": ["experiments.runs.folder", "matplotlib"]
    + ["experiments.reports.tables", "numpy"],
    "experiments/reports/svg.py": ["matplotlib"],
    "experiments/reports/pages.py": [],
    "experiments/reports/tables.py": ["experiments.settings", "rich"],
    "experiments/reports/data_tables.py": ["experiments.reports.tables", "rich"],
    "experiments/reports/data_figures.py": [
        "experiments.reports",
        "experiments.settings",
        "matplotlib",
        "numpy",
    ],
    "experiments/reports/league_figures.py": ["experiments.reports", "matplotlib"],
    "experiments/reports/gradient_figure.py": ["matplotlib", "numpy"],
    "experiments/reports": [
        "experiments.runs.folder",
        "experiments.reports",
        "experiments.settings",
        "numpy",
    ],
    "experiments/supervised/metrics.py": ["experiments.runs.folder"]
    + ["experiments.settings", "numpy", "tensorboardX"],
    "experiments/supervised/optimizer.py": ["experiments.settings", "optax"],
    "experiments/supervised/tasks": [
        "experiments.datasets",
        "experiments.paper1997.tasks.temporal_order",
        "experiments.reports.film",
        "experiments.settings",
        "experiments.supervised.classification",
        "experiments.supervised.network",
        "experiments.supervised.parts",
        "experiments.supervised.task",
        "experiments.supervised.tasks",
        "flax.linen",
        "jax",
        "numpy",
        "optax",
        "rnncells",
    ],
    "experiments/supervised/inspection_figures.py": ["experiments.supervised.task"]
    + ["matplotlib", "numpy", "rnncells"],
    "experiments/supervised": [
        "experiments",
        "flax.linen",
        "flax.traverse_util",
        "jax",
        "numpy",
        "optax",
        "rnncells",
    ],
    "experiments/runs/sweep.py": ["experiments.runs.folder", "experiments.settings"]
    + ["experiments.runs.interruption"],
    "experiments": ["experiments", "jax", "numpy"],
}
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("rnncells", "experiments", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
)


def imported(tree):
    """Yields the full name of everything that a file imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_within(name, packages):
    return any(name == p or name.startswith(f"{p}.") for p in packages)


def standard_library(name):
    return name.partition(".")[0] in sys.stdlib_module_names


def part_of(file):
    return max((part for part in ALLOWED if file.startswith(part)), key=len)


def read(file):
    return (ROOT / file).read_text()


def violations(file, source):
    allowed = ALLOWED[part_of(file)]
    for name in imported(ast.parse(source)):
        if not standard_library(name) and not is_within(name, allowed):
            yield f"{file} imports {name}; {part_of(file)} may import only {allowed}."
        if file.startswith(("experiments", "examples")) and name.startswith(
            "rnncells."
        ):
            if name.count(".") > 1 and not name.startswith("rnncells.interop."):
                yield f"{file} imports {name}, which is no public name."


def test_engine_has_no_hidden_state():
    for path in (ROOT / "rnncells" / "recurrence").rglob("*.py"):
        names = {
            node.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Name)
        }
        assert not names & {"contextvars", "ContextVar", "globals"}, path


def test_imports_go_one_way():
    found = [line for file in FILES for line in violations(file, read(file))]
    assert found == []


@pytest.mark.parametrize(
    "file, source",
    [
        ("rnncells/recurrence/schedule.py", "import flax.linen"),
        ("rnncells/cells/gru.py", "from rnncells.cells.lstm import LSTMCell"),
        ("rnncells/cells/base.py", "def f():\n    from rnncells.layers.rnn import RNN"),
        ("rnncells/layers/rnn.py", "import flax.nnx"),
        ("rnncells/layers/rnn.py", "from rnncells.cells.gru import GRUCell"),
        ("experiments/paper1997/run.py", "from rnncells.cells.gru import GRUCell"),
        ("experiments/settings/config.py", "import jax"),
        ("experiments/datasets/files.py", "import jax"),
        ("rnncells/cells/carry.py", "import experiments"),
    ],
)
def test_wrong_import_is_found(file, source):
    assert list(violations(file, source))


PUBLIC = {
    name: getattr(rnncells, name)
    for name in rnncells.__all__
    if inspect.isclass(getattr(rnncells, name))
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_classes_are_documented(name):
    cls = PUBLIC[name]
    own = cls.__doc__ or ""
    assert own.strip()
    documented = "\n".join(base.__doc__ or "" for base in cls.__mro__)
    for field in getattr(cls, "__dataclass_fields__", {}):
        if field not in ("parent", "name"):
            line = rf"^\s+{field}: "
            assert re.search(line, documented, re.MULTILINE), f"{field} lacks its line"


def own_bases(cls):
    """The class and its bases, without those of flax."""
    return [c for c in cls.__mro__ if c.__module__.startswith("rnncells.")]


def entry(cls, field):
    """The lines on a field in the nearest class whose documentation has them."""
    for base in own_bases(cls):
        lines = rf"^( +){field}: .*(?:\n\1 +.*)*"
        found = re.search(lines, base.__doc__ or "", re.MULTILINE)
        if found:
            return " ".join(found[0].split())
    raise AssertionError(f"{field} lacks its line")


@pytest.mark.parametrize("name", PUBLIC)
def test_entries_of_fields_end_with_their_defaults(name):
    for field in getattr(PUBLIC[name], "__dataclass_fields__", {}).values():
        if field.name in ("parent", "name"):
            continue
        text = entry(PUBLIC[name], field.name)
        stated = re.search(r" Default: (.+)\.$", text)
        is_required = field.default is dataclasses.MISSING
        assert is_required == (stated is None), text
        # Other defaults, such as functions and dtypes, are stated in words.
        if isinstance(field.default, bool | int | float | str | None):
            assert ast.literal_eval(stated[1].strip("`")) == field.default, text


@pytest.mark.parametrize("name", PUBLIC)
def test_equations_read_well_in_a_terminal(name):
    for base in own_bases(PUBLIC[name]):
        latex = re.findall(r":math:|math::|\\\w+", base.__doc__ or "")
        assert latex == [], f"write {latex} of {base.__name__} in Unicode"


@pytest.mark.parametrize("name", [n for n in PUBLIC if hasattr(nn, n)])
def test_fields_of_flax_come_first_and_with_its_defaults(name):
    def fields(cls):
        all_fields = cls.__dataclass_fields__.values()
        return [f for f in all_fields if f.name not in ("parent", "name")]

    ours, theirs = fields(PUBLIC[name]), fields(getattr(nn, name))
    assert [f.name for f in ours][: len(theirs)] == [f.name for f in theirs]
    for our, their in zip(ours, theirs, strict=False):
        # Functions are compared by what they do, in test_flax_parity.py.
        # On a GPU, `RNN` chooses `unroll`; elsewhere None is Flax's 1.
        if not callable(their.default) and our.name != "unroll":
            assert our.default == their.default, our.name


def test_page_on_the_engine_names_functions_that_exist():
    text = (ROOT / "docs" / "engine.md").read_text()
    assert len(text.splitlines()) <= 150
    places = re.findall(r"`([\w/]+\.py):([\w.]+)`", text)
    assert len(places) > 20
    for file, name in places:
        path = ROOT / ("" if "/" in file else "rnncells/recurrence") / file
        body = ast.parse(path.read_text()).body
        for part in name.split("."):
            (found,) = (d for d in body if getattr(d, "name", None) == part)
            body = found.body
