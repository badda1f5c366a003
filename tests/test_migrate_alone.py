"""`rnncells migrate` runs on Python alone; as a filter, and as a pre-commit hook."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import PROGRAMS

from rnncells.migrate.cli import main
from rnncells.migrate.migration import migrate

ROOT = Path(__file__).resolve().parent.parent
OLD = PROGRAMS["setup"]
NEW = migrate(OLD.encode()).data.decode()
MARKED = "import flax.linen as nn\ncell = nn.LSTMCell()\n"


def run_alone(*words, **options):
    """Runs the command without any installed package: `-S` leaves out site-packages."""
    command = [sys.executable, "-S", "-m", "rnncells", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


def test_help_and_rewrites_need_no_package():
    script = "import jax"
    command = [sys.executable, "-S", "-c", script]
    assert subprocess.run(command, capture_output=True).returncode == 1
    assert "--fail-on-marks" in run_alone("migrate", "--help", check=True).stdout
    assert run_alone("migrate", "-", input=OLD, check=True).stdout == NEW


def test_migrate_params_says_that_it_needs_flax():
    done = run_alone("migrate-params", "old", "--like", "new")
    message = "error: `rnncells migrate-params` needs JAX and Flax: No module named '"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message) and done.stderr.count("\n") == 1


@pytest.fixture
def stdin(monkeypatch):
    def stdin(data):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return stdin


@pytest.mark.parametrize(
    "code, options, status, output",
    [
        (OLD, [], 0, NEW),
        (NEW, [], 0, NEW),
        (NEW, ["--check"], 0, ""),
        (OLD, ["--check"], 1, ""),
        (OLD, ["--select", "RC12"], 0, OLD),
        ("print 'flax LSTMCell'", [], 2, ""),
        (OLD, ["--write"], 2, ""),
        (OLD, ["setup.py"], 2, ""),
    ],
)
def test_standard_input_is_rewritten_to_standard_output(
    code, options, status, output, stdin, capsys
):
    stdin(code.encode())
    assert main(["migrate", "-", *options]) == status
    assert capsys.readouterr().out == output


def test_marked_lines_of_standard_input_are_named(stdin, capsys):
    stdin(MARKED.encode())
    assert main(["migrate", "-"]) == 0
    assert re.search(r"^-:2: RC01 ", capsys.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize("option", ["--write", "--check"])
def test_fail_on_marks(option, tmp_path, capsys):
    """New and earlier marks count, also in notebooks; text in strings does not."""
    path = tmp_path / "model.py"
    words = ["migrate", str(tmp_path), option, "--fail-on-marks"]
    path.write_text(NEW + "text = 'TODO(rnncells): RC01: '\n")
    assert main(words) == 0
    path.write_text(MARKED)
    assert main(words) == 1
    path.write_bytes(migrate(MARKED.encode()).data)
    assert main(words) == 1
    assert main(words[:-1]) == 0
    path.write_text("import flax\n# TODO(rnncells): RC01: fix this\n")
    assert main(words) == 1
    left = "a mark of an earlier run is left"
    assert f"model.py:2: {left}\n" in capsys.readouterr().err
    path.unlink()
    cell = '{"cell_type": "code", "source": "import flax\\n# TODO(rnncells): RC01: "}'
    notebook = f'{{"cells": [{cell}], "metadata": {{}}, "nbformat": 4}}'
    (tmp_path / "model.ipynb").write_text(notebook)
    assert main(words) == 1
    assert f"model.ipynb: code cell 1, line 2: {left}\n" in capsys.readouterr().err
    (tmp_path / "model.ipynb").write_text("{'flax'}")
    assert main(words) == 2


def test_the_pre_commit_hook_runs_from_a_checkout(tmp_path):
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text()
    entry = re.search(r"^  entry: (.*)$", hook, re.MULTILINE)[1]
    args = re.search(r"^  args: \[(.*)\]$", hook, re.MULTILINE)[1].split(", ")
    assert "\n  language: script\n" in hook
    path = tmp_path / "setup.py"
    path.write_text(OLD)
    # Of the commit's repository: the hook must not import it in place of Python's own.
    (tmp_path / "ast.py").write_text("raise SystemExit('run!')\n")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [ROOT / entry, *args, "setup.py"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    assert path.read_text() == NEW
