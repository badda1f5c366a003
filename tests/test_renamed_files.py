"""`rnncells migrate-params`: the files that it reads and writes, and its errors."""

from pathlib import Path

import numpy as np
import pytest
from flax import serialization

from rnncells._command import main

pytestmark = pytest.mark.default


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def saved(path, **modules):
    params = {
        name: {"kernel": np.arange(6.0).reshape(shape)}
        for name, shape in modules.items()
    }
    # As `flax.training.checkpoints` wrote a state before Orbax.
    opt_state = {"0": {"count": np.int32(5), "trace": params}, "1": {}}
    state = {"step": 5, "params": params, "opt_state": opt_state}
    path.write_bytes(serialization.to_bytes(state))
    return state


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.npz").write_bytes(b"\xc1 no")
    (tmp_path / "list").write_bytes(serialization.msgpack_serialize([1, 2]))
    (tmp_path / "orbax").mkdir()
    saved(tmp_path / "wide", b=(3, 2))
    saved(tmp_path / "two", a=(2, 3), b=(2, 3))
    saved(tmp_path / "like", head=(2, 3))
    return saved(tmp_path / "checkpoint_10", a=(2, 3))


@pytest.mark.parametrize("name", ["checkpoint_0", "checkpoint_0.5", "x.msgpack"])
def test_checkpoints_can_have_any_name(name, checkpoints, capsys):
    words = ["migrate-params", "checkpoint_10", "--like", "like"]
    assert main(words) == 0
    moves = "opt_state/0/trace/a -> opt_state/0/trace/head\nparams/a -> params/head\n"
    assert capsys.readouterr().out == moves
    assert main([*words, "--write", name]) == 0
    params = {"head": checkpoints["params"]["a"]}
    opt_state = {"0": {"count": np.int32(5), "trace": params}, "1": {}}
    expected = {"step": 5, "params": params, "opt_state": opt_state}
    written = serialization.msgpack_restore(Path(name).read_bytes())
    np.testing.assert_equal(written, expected)


def test_existing_files_are_replaced_only_with_force(checkpoints, capsys):
    words = ["migrate-params", "checkpoint_10", "--like", "like", "--write"]
    for name in ("checkpoint_10", "like", "./noise.npz"):
        before = Path(name).read_bytes()
        assert main([*words, name]) == 2
        error = capsys.readouterr().err
        assert error == f"error: {Path(name)} exists. Pass --force to replace it.\n"
        assert Path(name).read_bytes() == before
    assert main([*words, "checkpoint_10", "--force"]) == 0
    assert main([*words[:-1]]) == 0
    assert capsys.readouterr().out.endswith("no name changes\n")
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "words, message",
    [
        ("none --like like", "error: no such file: none\n"),
        ("like --like none.safetensors", "error: no such file: none.safetensors\n"),
        ("like --like like --write no/x", "error: no such folder: no\n"),
        ("noise.npz --like like", "noise.npz must hold the bytes of"),
        ("list --like like", "expected a dictionary, got list"),
        ("orbax --like like", "orbax is a folder. Restore an Orbax checkpoint"),
        ("like --like like --name b", "`--name` must be OLD=NEW, got 'b'"),
        ("like --like like --name b=c", "some of params/head; got 'b'."),
        (
            "like --like like --write x.safetensors",
            "x.safetensors: safetensors files hold only arrays, but ",
        ),
        (
            "wide --like like",
            "params/b has kernel (3, 2), but params/head of `like` has kernel (2, 3)",
        ),
        ("two --like like", "or `--name params/a=params/head`"),
    ],
)
def test_errors_name_the_wrong_file_or_module(words, message, checkpoints, capsys):
    before = contents(Path())
    assert main(["migrate-params", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error
    assert contents(Path()) == before


def test_the_command_that_rewrites_code_is_named(capsys):
    assert main(["migrate", "src/", "--write"]) == 2
    error = capsys.readouterr().err
    assert "`rnncells-migrate`" in error and error.count("\n") == 1
