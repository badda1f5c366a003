"""A run's folder: what is gone on with, what is refused, and what is never lost."""

import dataclasses
import functools
import json
import os
import shutil

import jax
import pytest
from levels import by_level

from experiments.cli import main
from experiments.paper1997.run import run
from experiments.paper1997.training import loop
from experiments.paper1997.training.loop import Run
from experiments.paper1997.training.trainer import Trainer
from experiments.runs import checkpoint, environment
from experiments.runs.checkpoint import Checkpoints, saved_steps
from experiments.runs.environment import describe_environment
from experiments.runs.folder import (
    CHECKPOINTS,
    CONFIG,
    CURVE,
    ENVIRONMENT,
    METRICS,
    RESULT,
    check,
    locked,
    to_json,
    write,
)
from experiments.settings.reading import config_path, read_config, to_dict, toml_lines
from experiments.settings.rules import ConfigError

pytestmark = pytest.mark.default

# Its programs compile fastest.
NAME = "long-lag-2a"


@pytest.fixture(scope="module")
def config():
    literal = read_config(config_path(NAME))
    learning = dataclasses.replace(literal.learning, max_sequences=6)
    return dataclasses.replace(literal, trials=2, test_sequences=4, learning=learning)


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch):
    """Lets all runs of one config share their compiled programs."""
    monkeypatch.setattr("experiments.paper1997.run.Trainer", trainer_of)


@functools.cache
def trainer_of(config):
    return Trainer(config)


def train(config, folder):
    with Checkpoints(folder / CHECKPOINTS) as checkpoints:
        Run(trainer_of(config), folder, checkpoints).train()


@pytest.fixture(scope="module")
def killed(tmp_path_factory, config):
    """Contains a run that was killed after its last checkpoint."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / CONFIG).write_text(to_json(to_dict(config)))
    (folder / ENVIRONMENT).write_text(to_json([describe_environment()]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHUNK", 2)
        patch.setattr(checkpoint, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
        train(config, folder)
    assert saved_steps(folder / CHECKPOINTS) == [4, 6]
    return folder


@pytest.fixture
def folder(tmp_path, killed, monkeypatch):
    """Contains a copy of the killed run."""
    monkeypatch.setattr(loop, "CHUNK", 2)
    return shutil.copytree(killed, tmp_path / "run")


def result_in(folder):
    return json.loads((folder / RESULT).read_text())


def test_result_names_the_environments_of_start_and_resume(folder, config, monkeypatch):
    began = describe_environment()
    for commit in ("abc", "abc", "def"):
        now = began | {"commit": commit, "python": "3.99.0"}
        monkeypatch.setattr(environment, "describe_environment", lambda now=now: now)
        noted = environment.note_environment(folder)
    run(config, folder, NAME, None)
    result = result_in(folder)
    assert result["environment"] == began
    assert [one["commit"] for one in result["resumed"]] == ["abc", "def"]
    assert noted == [result["environment"], *result["resumed"]]
    assert not (folder / ENVIRONMENT).exists()


@pytest.mark.parametrize(
    "name",
    by_level(
        [
            *("jax", "jaxlib", "flax", "optax", "numpy", "device", "processor"),
            *("jax_default_prng_impl", "jax_default_matmul_precision", "XLA_FLAGS"),
        ],
        2,
    ),
)
def test_run_does_not_resume_where_numbers_may_differ(name, folder, config):
    began = describe_environment()
    before = [began | {name: "0.1"}]
    (folder / ENVIRONMENT).write_text(to_json(before))
    message = f"was started with {name} 0.1, now .*pass --overwrite to start again"
    with pytest.raises(ConfigError, match=message):
        run(config, folder, NAME, None)
    assert json.loads((folder / ENVIRONMENT).read_text()) == before
    # Without a checkpoint, nothing is left of what the run was started with.
    shutil.rmtree(folder / CHECKPOINTS)
    run(config, folder, NAME, None)
    assert (result_in(folder)["environment"], result_in(folder)["resumed"]) == (
        began,
        [],
    )


def test_environment_has_the_settings_that_change_numbers(monkeypatch):
    before = describe_environment()
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x --xla_cpu_enable_fast_math=true")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    changed = {
        "jax_enable_x64": True,
        "jax_default_prng_impl": "rbg",
        "jax_threefry_partitionable": False,
        "jax_default_matmul_precision": "tensorfloat32",
    }
    try:
        for name, value in changed.items():
            jax.config.update(name, value)
        now = describe_environment()
    finally:
        for name in changed:
            jax.config.update(name, before[name])
    assert {name for name in now if now[name] != before[name]} == {
        *changed,
        "XLA_FLAGS",
        "NVIDIA_TF32_OVERRIDE",
    }
    assert now["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=true"
    assert json.loads(to_json(now)) == now


def test_run_without_recorded_settings_resumes(folder):
    began = describe_environment()
    old = {name: began[name] for name in began if not name.startswith("jax_")}
    (folder / ENVIRONMENT).write_text(to_json([old]))
    assert environment.note_environment(folder) == [old, began]


@pytest.mark.parametrize(
    "file, damage",
    by_level(
        [
            (METRICS, lambda path: path.write_bytes(path.read_bytes()[:-1])),
            (METRICS, lambda path: path.unlink()),
            (METRICS, lambda path: path.write_bytes(bytes(path.stat().st_size))),
            (METRICS, lambda path: path.write_text("[" * 100_000)),
            (METRICS, lambda path: path.write_text("9" * 6_000)),
            (ENVIRONMENT, lambda path: path.write_text("[]")),
            (ENVIRONMENT, lambda path: path.write_text('[{"commit": "abc"}]')),
            (ENVIRONMENT, lambda path: path.unlink()),
        ],
        2,
    ),
)
def test_damaged_file_of_a_run_is_named_and_overwritten(file, damage, folder, config):
    damage(folder / file)
    with pytest.raises(ConfigError, match=f"{file} is .*Pass --overwrite"):
        run(config, folder, NAME, None)
    assert not (folder / RESULT).exists()
    run(config, folder, NAME, None, overwrite=True)
    assert result_in(folder)["presented"] == 6


def test_linked_checkpoints_are_used_and_only_the_link_is_removed(folder, config):
    elsewhere = folder.with_name("elsewhere")
    (folder / CHECKPOINTS).rename(elsewhere)
    (folder / CHECKPOINTS).symlink_to(elsewhere)
    run(config, folder, NAME, None)
    assert result_in(folder)["presented"] == 6
    assert not (folder / CHECKPOINTS).is_symlink() and elsewhere.is_dir()


def test_half_a_file_of_a_killed_process_is_no_other_content(tmp_path, config):
    for name in (CONFIG, ENVIRONMENT):
        (tmp_path / f"{name}.new").write_text("{")
    check(tmp_path, config)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        check(tmp_path, config)


def test_file_that_cannot_be_written_is_named_and_kept(tmp_path, monkeypatch):
    def fsync(file):
        raise OSError(28, "No space left on device")

    write(tmp_path / CONFIG, "old")
    monkeypatch.setattr(os, "fsync", fsync)
    message = rf"cannot write {tmp_path / CONFIG}: No space left on device\. Repeat"
    with pytest.raises(ConfigError, match=message):
        write(tmp_path / CONFIG, "new")
    assert os.listdir(tmp_path) == [CONFIG]
    assert (tmp_path / CONFIG).read_text() == "old"


def test_folder_below_a_file_is_refused_without_a_word_about_checkpoints(tmp_path):
    (tmp_path / "file").write_text("kept")
    message = "cannot write in the folder `.*/file/run`: Not a directory. Choose"
    with pytest.raises(ConfigError, match=message), locked(tmp_path / "file/run"):
        pass


def test_result_is_not_lost_without_overwrite(folder, config, monkeypatch):
    run(config, folder, NAME, None)
    before = (folder / RESULT).read_bytes()
    other = dataclasses.replace(config, seed=1)
    # The programs do not depend on the seed.
    trainer = trainer_of(config)
    monkeypatch.setattr(trainer, "experiment", other)
    monkeypatch.setattr("experiments.paper1997.run.Trainer", lambda config: trainer)
    message = "has a finished run with other options. Pass --overwrite"
    with pytest.raises(ConfigError, match=message):
        run(other, folder, NAME, None)
    assert (folder / RESULT).read_bytes() == before
    run(other, folder, NAME, None, overwrite=True)
    assert result_in(folder)["config"]["seed"] == 1


@pytest.mark.parametrize("has_checkpoints", [False, True])
def test_finished_run_shows_its_result(has_checkpoints, folder, config, capsys):
    saved = shutil.copytree(folder / CHECKPOINTS, folder.with_name("saved"))
    run(config, folder, NAME, None)
    before = (folder / RESULT).read_bytes()
    if has_checkpoints:
        # As a process that was killed after it had written the result.
        saved.rename(folder / CHECKPOINTS)
    path = folder.with_name("mine.toml")
    path.write_text("\n".join(toml_lines(to_dict(config))))
    assert main(["run", str(path), "--out", str(folder)]) == 0
    output = capsys.readouterr().out
    assert "0 of 2" in output and "stopped" not in output
    assert output.endswith("is already finished; pass --overwrite to repeat it\n")
    assert (folder / CURVE).is_file()
    assert run(config, folder, NAME, None) == result_in(folder)
    assert (folder / RESULT).read_bytes() == before
    assert not (folder / CHECKPOINTS).exists()
    assert main(["run", str(path), "--seed", "1", "--out", str(folder)]) == 2
    (folder / RESULT).write_text("{")
    assert main(["run", str(path), "--out", str(folder)]) == 2
    assert "damaged" in capsys.readouterr().err


def test_metrics_are_on_disk_before_the_checkpoint(tmp_path, config, monkeypatch):
    synced = []

    def fsync(file):
        synced.append(os.fstat(file).st_ino)

    def save(self, step, state):
        assert synced[-1] == (tmp_path / METRICS).stat().st_ino
        assert state["size"] == (tmp_path / METRICS).stat().st_size
        synced.append(step)

    monkeypatch.setattr(loop, "CHUNK", 2)
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Checkpoints, "save", save)
    train(config, tmp_path)
    assert synced[1::2] == [2, 4, 6]
