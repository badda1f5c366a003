"""Checkpoints: what comes back, what is refused, and what damage does."""

import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from data_configs import run_two_processes
from levels import by_level

from experiments.runs import checkpoint
from experiments.runs.checkpoint import Checkpoints, saved_steps
from experiments.settings.rules import ConfigError

pytestmark = pytest.mark.default


def state_at(step):
    """A state with a leaf of each kind; its arrays depend on the step."""
    weights = {"w": jnp.full((2, 3), step, jnp.float32), "b": jnp.ones(3, jnp.bfloat16)}
    return {
        "weights": weights,
        "optimizer": optax.adam(0.1).init(weights),
        "key": jax.random.key(step),
        "keys": jax.random.split(jax.random.key(step, impl="rbg"), 2),
        "host": np.full(4, step + 0.1),
        "scalar": np.float32(0.1),
        "numbers": (step, 2**40, 0.1, True),
        "none": None,
        "empty": np.zeros((0, 3), np.int8),
        "nothing": (),
    }


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, type(b)) and getattr(a, "dtype", 0) == getattr(
            b, "dtype", 0
        )
        if isinstance(b, jax.Array):
            assert (a.sharding, a.committed) == (b.sharding, b.committed)
        if jax.dtypes.issubdtype(getattr(b, "dtype", None), jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.fixture
def folder(tmp_path):
    """Contains the checkpoints 3 and 7."""
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder) as checkpoints:
        for step in (1, 3, 7):
            checkpoints.save(step, state_at(step))
    return folder


def newest(folder, like=None):
    with Checkpoints(folder) as checkpoints:
        return checkpoints.restore(state_at(0) if like is None else like)


def test_newest_state_comes_back_as_it_was(folder, capfd):
    step, found = newest(folder)
    assert step == 7
    assert_equal(found, state_at(7))
    assert saved_steps(folder) == [3, 7]
    with Checkpoints(folder) as checkpoints:
        assert_equal(checkpoints.restore(state_at(0), step=3)[1], state_at(3))
        with pytest.raises(ConfigError, match="has no checkpoint 1"):
            checkpoints.restore(state_at(0), step=1)
    assert capfd.readouterr().err == ""


def test_folder_without_checkpoints_has_nothing_to_restore(tmp_path):
    assert newest(tmp_path / "new") is None
    assert not (tmp_path / "new").exists()


def test_state_can_change_while_it_is_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = {"host": np.arange(300_000.0), "device": jnp.arange(300_000.0)}
    increment = jax.jit(lambda x: x + 1, donate_argnums=0)
    # In a relative folder, Orbax would save nothing.
    with Checkpoints(Path("relative"), keep=3) as checkpoints:
        for step in range(3):
            checkpoints.save(step, state)
            state["host"] += 1
            state["device"] = increment(state["device"])
        for step in range(3):
            _, found = checkpoints.restore(state, step)
            for leaf in found.values():
                np.testing.assert_array_equal(leaf, np.arange(300_000.0) + step)


OTHERS = [
    ({"host": np.zeros(5)}, r"`host` in .*7 must be float64\[5\], got float64\[4\]"),
    ({"host": np.zeros(4, np.float32)}, "`host` in .* must be float32"),
    ({"key": jax.random.key(0, impl="rbg")}, "`key` in .* must be key<rbg>"),
    ({"numbers": (1, 2, 3, True)}, "`numbers.2` in .* must be int, got float"),
    ({"more": 1}, "`more` in .* must be int, got none"),
    ({"none": 1}, "`none` in .* must be int, got NoneType"),
    ({"weights": {}}, "`weights.b` in .* must be absent, got bfloat16"),
]


@pytest.mark.parametrize("change, message", by_level(OTHERS, 3))
def test_other_leaf_is_named_and_not_cast(change, message, folder):
    with pytest.raises(ConfigError, match=message):
        newest(folder, state_at(0) | change)


def flip(path):
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


FILES = "checksums.json", "_CHECKPOINT_METADATA", "default/_METADATA", "default/d/*"


@pytest.mark.parametrize("damage", by_level([flip, truncate, Path.unlink], 1))
def test_damaged_file_is_named_and_the_checkpoint_before_is_used(damage, folder, capfd):
    files = [path for path in (folder / "7").rglob("*") if path.is_file()]
    assert all(any(path.match(name) for path in files) for name in FILES)
    original = folder.with_name("original")
    shutil.copytree(folder, original)
    for path in files:
        damage(path)
        assert_equal(newest(folder), (3, state_at(3)))
        (line,) = capfd.readouterr().err.splitlines()
        if damage is Path.unlink and path.name == "checksums.json":
            assert "checkpoints/7 is incomplete: it has no checksums.json" in line
        else:
            assert (
                f"{path} is {'missing' if damage is Path.unlink else 'damaged'}" in line
            )
        assert line.endswith(f"Going on from {folder / '3'}.")
        shutil.copy(original / path.relative_to(folder), path)


def test_checkpoint_whose_checksums_are_nested_too_deeply_is_damaged(folder, capfd):
    path = folder / "7/checksums.json"
    path.write_text("[" * 100_000)
    assert_equal(newest(folder), (3, state_at(3)))
    assert f"{path} is damaged" in capfd.readouterr().err


def test_renamed_checkpoint_is_not_one_of_another_step(folder, capfd):
    (folder / "7").rename(folder / "9")
    assert_equal(newest(folder), (3, state_at(3)))
    assert f"{folder / '9'} has been renamed: it was written as 7" in (
        capfd.readouterr().err
    )


def test_damaged_checkpoints_are_replaced(folder, capfd):
    flip(folder / "7" / "default" / "_METADATA")
    shutil.copytree(folder / "7", folder / "9")
    (folder / "9" / "checksums.json").unlink()
    left = folder / "11.orbax-checkpoint-tmp"
    left.mkdir()
    with Checkpoints(folder) as checkpoints:
        assert checkpoints.restore(state_at(0))[0] == 3
        assert len(capfd.readouterr().err.splitlines()) == 2
        checkpoints.save(7, state_at(8))
        step, found = checkpoints.restore(state_at(0))
        assert step == 7
        assert_equal(found, state_at(8))
    assert {path.name for path in folder.iterdir()} == {"3", "7"}
    assert capfd.readouterr().err == ""


def test_without_any_whole_checkpoint_the_damaged_file_is_an_error(folder):
    for step in (3, 7):
        flip(folder / str(step) / "default" / "_METADATA")
    message = r"7/default/_METADATA is damaged.* Pass --overwrite to start again\."
    with pytest.raises(ConfigError, match=message):
        newest(folder)


def test_first_save_that_was_killed_starts_again(folder, capfd):
    shutil.rmtree(folder / "3")
    (folder / "7" / "checksums.json").unlink()
    assert newest(folder) is None
    assert "7 is incomplete" in capfd.readouterr().err
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(2, state_at(2))
    assert saved_steps(folder) == [2]
    assert not (folder / "7").exists()


def test_mistakes_of_callers_are_errors(folder):
    checkpoints = Checkpoints(folder)
    for step in (7, 5):
        with pytest.raises(ValueError, match=f"above the newest .*, 7, got {step}"):
            checkpoints.save(step, state_at(step))
    with pytest.raises(TypeError, match="stores arrays and numbers, got 'text'"):
        checkpoints.save(8, {"a": "text"})
    checkpoints.close()
    checkpoints.close()
    with pytest.raises(ValueError, match="are closed"):
        checkpoints.save(8, state_at(8))
    with pytest.raises(ValueError, match="`keep` must be at least 1, got 0"):
        Checkpoints(folder, keep=0)


def test_failure_in_the_background_is_reported_by_the_next_call(folder, monkeypatch):
    def seal(folder, notes):
        raise OSError(28, "No space left on device")

    message = r"cannot write the checkpoint .*/8: No space left on device\. Repeat"
    with Checkpoints(folder) as checkpoints:
        monkeypatch.setattr(checkpoint, "seal", seal)
        checkpoints.save(8, state_at(8))
        with pytest.raises(ConfigError, match=message):
            checkpoints.save(9, state_at(9))
        checkpoints.save(9, state_at(9))
        with pytest.raises(ConfigError, match=message.replace("8", "9")):
            checkpoints.close()
    assert {path.name for path in folder.iterdir()} == {"3", "7"}
    assert newest(folder)[0] == 7


PROCESS = """
import sys
import jax
import numpy as np
from pathlib import Path
from jax.sharding import NamedSharding, PartitionSpec
from experiments.runs import checkpoint
from experiments.runs import processes
from experiments.runs.checkpoint import Checkpoints

folder, address, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(address, 2, number)
mesh = jax.make_mesh((jax.device_count(),), ("x",))
sharding = NamedSharding(mesh, PartitionSpec("x"))

def state_at(step):
    values = np.arange(8.0, dtype=np.float32) + step
    array = jax.make_array_from_callback((8,), sharding, lambda at: values[at])
    return {"a": array, "step": step, "host": values}

with Checkpoints(folder) as checkpoints:
    assert checkpoints.restore(state_at(0)) is None
    for step in (1, 2, 3):
        checkpoints.save(step, state_at(step))
    checkpoints.wait()
    assert checkpoint.saved_steps(folder) == [2, 3]
    step, found = checkpoints.restore(state_at(0))
    for a, b in zip(found["a"].addressable_shards, state_at(3)["a"].addressable_shards):
        np.testing.assert_array_equal(a.data, b.data)
    assert (step, found["step"], found["host"][0]) == (3, 3, 3.0)
    assert processes.largest(15 if number else None) == 15
    assert processes.largest(None) is None
    assert not checkpoints.are_due()
    checkpoint.SECONDS_BETWEEN_CHECKPOINTS = 1000.0 * number
    assert checkpoints.are_due()
    if number == 0:
        (folder / "3" / "default" / "_METADATA").unlink()
    processes.meet("test")
    assert checkpoints.restore(state_at(0))[0] == 2
    checkpoints.save(3, state_at(4))
    assert checkpoints.restore(state_at(0))[1]["step"] == 4
"""


@pytest.mark.exhaustive
def test_several_processes_save_and_restore_together(tmp_path):
    said = run_two_processes(
        PROCESS,
        lambda address, number: [str(tmp_path / "c"), address, str(number)],
        # Two devices in each process.
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    # Only the first process prints.
    assert ["_METADATA is missing" in text for text in said] == [True, False]
