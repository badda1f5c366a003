"""Training on several devices equals training on one."""

import dataclasses
import re
import shutil

import jax
import numpy as np
import pytest
from data_configs import language_model, run_in, write_text
from levels import by_level

from experiments.runs.checkpoint import Checkpoints
from experiments.runs.folder import CHECKPOINTS, METRICS
from experiments.supervised.loop import Run
from experiments.supervised.metrics import Metrics
from experiments.supervised.trainer import Trainer

pytestmark = [pytest.mark.several_devices, pytest.mark.default]

BATCH, WINDOW, CHUNK = 8, 5, 3


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Of a text of 1,200 characters with 7 symbols."""
    text = write_text(tmp_path_factory.mktemp("text") / "text.txt")
    return language_model(text, WINDOW, CHUNK)


@pytest.fixture(scope="module")
def trainer(config):
    """A trainer on all devices."""
    return Trainer(config)


def advance(trainer, state):
    """Returns the state after 3 updates, and the losses."""
    state = jax.device_put(state, trainer.shardings(state))
    return trainer.advance(state, trainer.data, 0, CHUNK)


@pytest.fixture(scope="module")
def two(config):
    """A trainer of two networks on one device, and their first state in NumPy."""
    config = dataclasses.replace(config, seeds=2)
    trainer = Trainer(config, devices=jax.devices()[:1])
    return trainer, jax.device_get(trainer.init())


@pytest.fixture(scope="module")
def on_one_device(two):
    """The state of two networks on one device, and the losses."""
    return jax.device_get(advance(*two))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seeds", [1, 2])
def test_several_devices_have_the_losses_of_one(
    seeds, config, trainer, two, on_one_device
):
    if seeds == 1:
        first = trainer.init()
    else:
        # The first state of two networks takes long to compile.
        trainer, first = Trainer(dataclasses.replace(config, seeds=2)), two[1]
    devices = len(jax.devices())
    assert trainer.mesh.size == devices > 1
    state, losses = advance(trainer, first)
    carry = jax.tree.leaves(state.carry)[0]
    assert carry.sharding.shard_shape(carry.shape)[:2] == (seeds, BATCH // devices)
    # The first network has the losses that it has alone; others have their own.
    np.testing.assert_allclose(losses, on_one_device[1][:, :seeds], rtol=1e-5)


def test_gradients_are_reduced_once_an_update(trainer):
    """The loop over updates has one all-reduce, the loops over time have none."""
    given = trainer, trainer.init(), trainer.data, 0, CHUNK
    program = Trainer.advance.lower(*given).compile()
    computations = re.split(r"\n(?=\S.*\{\n)", program.as_text())
    collectives = r"= .* (all-reduce|all-gather|reduce-scatter|all-to-all)(-start)?\("
    counts = {
        text.split()[0]: len(re.findall(collectives, text)) for text in computations
    }
    assert sum(counts.values()) == 1
    # The loop over updates, and two loops over time inside.
    [entry] = [text for text in computations if text.startswith("ENTRY")]
    [updates] = re.findall(r"body=(%[\w.-]+)", entry)
    assert counts[updates] == 1
    assert program.as_text().count(" while(") == 3


@pytest.fixture(scope="module")
def run(tmp_path_factory, trainer):
    """A run on all devices, in its folder."""
    return run_in(tmp_path_factory.mktemp("run"), trainer)


@pytest.mark.parametrize("count", by_level([1, 4], [4]))
def test_checkpoint_is_restored_on_fewer_devices(count, tmp_path, config, run):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    fewer = Trainer(config, devices=jax.devices()[:count])
    # Only the shapes of the state are read before it is restored.
    fewer.init = lambda: fewer.shapes
    restored = Run(fewer, folder, Metrics(folder / METRICS))
    with Checkpoints(folder / CHECKPOINTS) as checkpoints:
        restored._resume(checkpoints)
    assert restored.update == 9
    jax.tree.map(np.testing.assert_array_equal, restored.state, run.state)
    leaf = jax.tree.leaves(restored.state.carry)[0]
    assert len(leaf.sharding.device_set) == count
