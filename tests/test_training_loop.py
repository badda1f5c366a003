"""The training loop on a task of one number, whose losses are known in advance."""

import contextlib
import dataclasses
import json
import re
import struct
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from data_configs import Stop, changed
from tensorboardX.proto import event_pb2

from experiments.runs.folder import METRICS
from experiments.runs.interruption import Interrupted
from experiments.settings.reading import config_path, read_config
from experiments.supervised import loop
from experiments.supervised.loop import Run
from experiments.supervised.metrics import Metrics
from experiments.supervised.optimizer import optimizer_of
from experiments.supervised.task import Task
from experiments.supervised.trainer import Trainer

pytestmark = pytest.mark.default


class Falling(Task):
    """A weight `w` with the loss `w`: its gradient is 1, so Adam's step is the rate.

    The validation loss is the square of `w`, so it falls until `w` is 0.
    """

    def init(self, key):
        return {"w": jnp.float32(3.2)}

    def batch(self, data, key, update):
        return jnp.ones(8)

    def loss(self, params, batch, carry, key, update):
        return params["w"] * batch.mean(), carry

    def evaluate(self, params, data, split):
        return {"loss": params["w"] ** 2}


class Changing(Falling):
    """The gradient depends on the update, so that Adam's steps differ."""

    def batch(self, data, key, update):
        return jnp.full(8, jnp.cos(1.0 + update))


def trainer_of(task=Falling, optimizer=None, seeds=1, devices=1, **training):
    """Returns a trainer with steps of 1."""
    given = {"updates": 10, "batch": 8, "evaluate_every": 4, "chunk": 3}
    config = changed(
        read_config(config_path("copying-1000")),
        optimizer={"rate": 1.0, "schedule": "constant", "warmup": 0}
        | (optimizer or {}),
        training=given | training,
    )
    config = dataclasses.replace(config, seeds=seeds)
    return Trainer(config, task(), jax.devices()[:devices])


@pytest.fixture(scope="module")
def trainer():
    return trainer_of()


def interrupted(monkeypatch, train):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "Interruption", Stop)
        with pytest.raises(Interrupted):
            train()


def lines_in(folder):
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def test_calls_end_at_chunks_and_at_evaluations(tmp_path, trainer):
    """Evaluations after 4, 8 and 10 updates, calls that end at multiples of 3 too."""
    run = Run(trainer, tmp_path, Metrics(tmp_path / METRICS))
    run.train()
    found = [(line["update"], line["split"]) for line in lines_in(tmp_path)]
    ends = [3, 4, 6, 8, 9, 10]
    assert [update for update, split in found if split == "train"] == ends
    assert [update for update, split in found if split == "validation"] == [4, 8, 10]
    # The loss before update n is w = 3.2 - n.
    losses = [x["loss"][0] for x in lines_in(tmp_path) if x["split"] == "train"]
    starts = [0, *ends[:-1]]
    wanted = [3.2 - np.arange(a, b).mean() for a, b in zip(starts, ends)]
    # Adam's epsilon makes its steps a little smaller.
    np.testing.assert_allclose(losses, wanted, atol=1e-3)
    np.testing.assert_allclose(run.state.params["w"], [3.2 - 10], atol=1e-3)
    assert run.state.best_update == 4


def test_training_ends_when_no_network_gets_better(tmp_path, monkeypatch):
    """Networks that are best after 2 and after 6 updates, with a patience of 2."""
    trainer = trainer_of(seeds=2, updates=20, evaluate_every=1, chunk=1, patience=2)
    start = trainer.init()._replace(params={"w": jnp.array([2.2, 6.2])})
    monkeypatch.setattr(trainer, "init", lambda: start)
    run = Run(trainer, tmp_path, Metrics(None))
    run.train()
    assert run.state.best_update.tolist() == [2, 6]
    assert run.state.waited.tolist() == [6, 2]
    assert run.update == 8


def test_networks_have_their_own_random_keys():
    trainer = trainer_of(seeds=2)
    keys = [jax.random.key_data(key) for seed in (0, 1) for key in trainer.keys(seed)]
    assert len(np.unique(keys, axis=0)) == 6


def test_average_follows_changes_of_the_weights():
    """With three batches for each change, eight batches make two changes."""
    options = {"accumulate": 3, "ema": 0.15, "rate": 0.5}
    trainer = trainer_of(Changing, options, updates=8)
    optimizer = optimizer_of(trainer.experiment.optimizer, 8)
    params = {"w": jnp.float32(3.2)}
    state, average = optimizer.init(params), 3.2
    for n in range(8):
        gradient = {"w": jnp.cos(1.0 + n)}
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        if n in (2, 5):
            # The decay is 1/10, then 2/11 or the largest, 0.15.
            decay = 0.1 if n == 2 else 0.15
            average = decay * average + (1 - decay) * float(params["w"])
    got, _ = trainer.advance(trainer.init(), (), 0, 8)
    np.testing.assert_allclose(got.params["w"], [params["w"]], rtol=1e-5)
    np.testing.assert_allclose(got.average["w"], [average], rtol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_types_of_the_state_stay_with_64_bit_types(accumulate):
    """As `lax.scan` and checkpoints need it."""
    with jax.enable_x64(True):
        trainer = trainer_of(optimizer={"ema": 0.9, "accumulate": accumulate}, seeds=2)
        before, data = trainer.shapes, trainer.data
        advance = partial(trainer.advance, start=0, count=2)
        advanced, _ = jax.eval_shape(advance, before, data)
        validated, _ = jax.eval_shape(trainer.validate, before, data, 0)
    chex.assert_trees_all_equal_shapes_and_dtypes(before, advanced, validated)


@pytest.mark.several_devices
@pytest.mark.parametrize("batch, devices", [(27, 3), (6, 6), (64, 8), (7, 7), (11, 1)])
def test_batch_is_divided_by_as_many_devices_as_divide_it(batch, devices):
    assert trainer_of(batch=batch, devices=None).mesh.size == devices


@pytest.mark.several_devices
def test_each_device_computes_a_part_of_a_batch():
    """Only then must the devices add their parts of the gradient."""
    counts = []
    for devices in (1, 4):
        trainer = trainer_of(Changing, devices=devices)
        given = trainer, trainer.init(), (), 0, 3
        program = Trainer.advance.lower(*given).compile().as_text()
        counts.append(len(re.findall(r" all-reduce(-start)?\(", program)))
    assert counts == [0, 1]


def events_in(folder):
    """Returns the events of all files, in the order in which TensorBoard reads them."""
    found = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            # The length, its checksum, the event, its checksum.
            (size,) = struct.unpack("<Q", data[:8])
            found.append(event_pb2.Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def shown(folder):
    """Returns what TensorBoard shows: a session hides later steps of those before."""
    points = []
    for event in events_in(folder):
        if event.HasField("session_log"):
            points = [point for point in points if point[1] < event.step]
        points += [
            (value.tag, event.step, value.simple_value) for value in event.summary.value
        ]
    return points


def test_tensorboard_shows_each_step_of_a_resumed_run_once(
    tmp_path, trainer, monkeypatch
):
    def train():
        with Metrics(tmp_path / METRICS, tmp_path / "tensorboard") as metrics:
            Run(trainer, tmp_path, metrics).train()

    interrupted(monkeypatch, train)
    # A process that was killed before its first checkpoint.
    killed = Metrics(tmp_path / METRICS, tmp_path / "tensorboard")
    killed.restart((tmp_path / METRICS).stat().st_size, 3)
    for update in (4, 6):
        killed.write(update, "train", {"loss": np.array([7.0])})
    killed.close()
    train()
    wanted = [
        (f"{line['split']}/loss/0", line["update"], line["loss"][0])
        for line in lines_in(tmp_path)
    ]
    got = shown(tmp_path / "tensorboard")
    assert [point[:2] for point in got] == [point[:2] for point in wanted]
    np.testing.assert_allclose([p[2] for p in got], [p[2] for p in wanted], rtol=1e-6)


def test_files_of_tensorboard_are_closed_after_an_error(tmp_path):
    with pytest.raises(OSError, match="full"):
        with Metrics(tmp_path / METRICS, tmp_path / "tensorboard") as metrics:
            metrics.restart(0)
            metrics.write(1, "train", {"loss": np.array([7.0])})
            raise OSError("full")
    assert metrics.writer is None
    assert shown(tmp_path / "tensorboard") == [("train/loss/0", 1, 7.0)]


@pytest.mark.parametrize("chunk, traced", [(3, [3]), (10, [0])])
def test_trace_is_of_the_second_call_or_of_the_only_one(
    chunk, traced, tmp_path, monkeypatch, capsys
):
    given = {"evaluate_every": 10, "chunk": chunk}
    run = Run(trainer_of(**given), tmp_path, Metrics(None), tmp_path / "profile")
    found = []

    @contextlib.contextmanager
    def trace(folder):
        assert folder == str(tmp_path / "profile")
        found.append(run.update)
        yield

    monkeypatch.setattr(jax.profiler, "trace", trace)
    run.train()
    assert found == traced and "trace" not in capsys.readouterr().err
    # The run has finished: no call is left.
    again = Run(run.trainer, tmp_path, Metrics(None), tmp_path / "profile")
    again.train()
    assert found == traced
    assert "no trace was written, because" in capsys.readouterr().err
