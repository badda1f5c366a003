"""Training on data sets: the trainer, its tasks, and sampling from a language model."""

import dataclasses
import json
import math
import re
from functools import cache, partial
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from data_configs import Stop, changed, language_model, run_in, write_text

from experiments import cli
from experiments.datasets.digits import Digits, Images
from experiments.runs.folder import METRICS, RESULT
from experiments.runs.interruption import Interrupted
from experiments.settings.reading import config_path, data_names, read_config
from experiments.settings.rules import ConfigError
from experiments.supervised import sampling
from experiments.supervised.classification import Labelled, drawn, scores
from experiments.supervised.network import MADE, cell_names
from experiments.supervised.optimizer import optimizer_of
from experiments.supervised.sampling import Sampler
from experiments.supervised.tasks import TASKS
from experiments.supervised.tasks.adding import AddingTask
from experiments.supervised.tasks.japanese_vowels import JapaneseVowelsTask
from experiments.supervised.tasks.moving_digits import (
    MovingDigitsTask,
    from_patches,
    to_patches,
)
from experiments.supervised.tasks.pixels import sha256_of
from experiments.supervised.trainer import Trainer

pytestmark = pytest.mark.default

BATCH, WINDOW, CHUNK = 8, 5, 3


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A file of 1,200 characters with 7 symbols."""
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def config(text):
    # No forget bias, as in Flax's cell, with which a test compares.
    return changed(language_model(text, WINDOW, CHUNK), model={"forget_bias": 0.0})


@pytest.fixture(scope="module")
def trainer(config):
    return Trainer(config)


@pytest.fixture(scope="module")
def advanced(trainer):
    """The state after 3 updates, and the losses."""
    return trainer.advance(trainer.init(), trainer.data, 0, CHUNK)


def advance(config):
    trainer = Trainer(config)
    return trainer.advance(trainer.init(), trainer.data, 0, CHUNK)


def of_network(tree):
    """Returns NumPy arrays of the first network."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], tree)


@cache
def applied(model):
    """Returns a compiled model; tests of inputs of equal shapes share it."""
    return jax.jit(lambda params, inputs: model.apply({"params": params}, inputs))


def test_every_task_has_a_config():
    configs = [read_config(config_path(name)) for name in data_names()]
    assert {config.task.name for config in configs} == TASKS.keys()


def test_updates_equal_a_loop_over_windows(config, trainer, advanced):
    """Compares with optax and the model, called on slices of the text."""
    task, text = trainer.task, trainer.task.text.codes
    optimizer = optimizer_of(config.optimizer, config.training.updates)
    params = of_network(trainer.init().params)

    def loss(params, carry, x, y):
        carry, logits = task.model.apply({"params": params}, x, carry=carry)
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1)
        return -log_p.mean(), carry

    @jax.jit
    def update(params, state, carry, x, y):
        of_loss = jax.value_and_grad(loss, has_aux=True)
        (value, carry), gradient = of_loss(params, carry, x, y)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, carry, value

    # NumPy's arrays, as the second call would compile again for new shardings.
    state = jax.device_get(jax.jit(optimizer.init)(params))
    carry = jax.device_get(task.initial_carry())
    last = (
        1079 - math.ceil(1079 / (BATCH * WINDOW)) * WINDOW
    )  # first of the last stream
    for n in range(CHUNK):
        firsts = [stream * last // (BATCH - 1) for stream in range(BATCH)]
        starts = [first + n * WINDOW for first in firsts]
        x, y = (
            np.array([text[at + ahead : at + ahead + WINDOW] for at in starts])
            for ahead in (0, 1)
        )
        params, state, carry, value = update(params, state, carry, x, y)
        np.testing.assert_allclose(advanced[1][n, 0], value, rtol=1e-5)
    new = advanced[0].params, advanced[0].carry
    for got, wanted in zip(of_network(new), (params, carry), strict=True):
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), got, wanted)


@pytest.mark.exhaustive
def test_bfloat16_changes_the_computation_and_not_the_weights(config, advanced):
    state, losses = advance(changed(config, training={"precision": "bfloat16"}))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.params)} == {"float32"}
    assert losses.dtype == np.float32
    of_float32 = np.asarray(advanced[1])
    # bfloat16 has 8 bits: each number has an error of up to 0.4 %.
    np.testing.assert_allclose(losses, of_float32, rtol=4e-3)
    assert np.abs(losses / of_float32 - 1).max() > 1e-5


def test_optimizer_follows_its_equations(config):
    """AdamW on clipped gradients; the rate rises, and then follows a cosine."""
    given = {"rate": 0.1, "warmup": 2, "final": 0.2, "b2": 0.9, "clip": 2.0}
    config = changed(config, optimizer=given | {"weight_decay": 0.3}).optimizer
    optimizer = optimizer_of(config, 6)
    update = jax.jit(optimizer.update)
    params = {"w": jnp.array([1.0, -2.0])}
    state, w, m, v = optimizer.init(params), np.array([1.0, -2.0]), 0.0, 0.0
    for n in range(5):
        g = np.array([3.0, -4.0]) if n % 2 else np.array([0.3, 0.5])
        updates, state = update({"w": jnp.array(g)}, state, params)
        params = optax.apply_updates(params, updates)
        g = g / max(1, np.linalg.norm(g) / 2)
        m, v = 0.9 * m + 0.1 * g, 0.9 * v + 0.1 * g**2
        step = m / (1 - 0.9 ** (n + 1)) / (np.sqrt(v / (1 - 0.9 ** (n + 1))) + 1e-8)
        cosine = 0.2 + 0.8 * (1 + np.cos(np.pi * (n - 2) / 4)) / 2
        w = w - 0.1 * (n / 2 if n < 2 else cosine) * (step + 0.3 * w)
        np.testing.assert_allclose(params["w"], w, rtol=1e-5)


def test_accumulated_gradients_equal_those_of_a_large_batch(config):
    """Three equal batches change the weights once, as one of them does."""
    config = changed(config, optimizer={"accumulate": 3, "clip": 1e9, "warmup": 0})
    optimizer = optimizer_of(config.optimizer, 9)
    plain = optimizer_of(dataclasses.replace(config.optimizer, accumulate=1), 3)
    params = {"w": jnp.array([1.0, -2.0])}
    gradients = [{"w": jnp.array(g)} for g in ([3.0, 1.0], [0.0, 2.0], [3.0, 6.0])]
    state, total = optimizer.init(params), params
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, total)
        total = optax.apply_updates(total, updates)
    mean = {"w": jnp.array([2.0, 3.0])}
    updates, _ = jax.jit(plain.update)(mean, plain.init(params), params)
    np.testing.assert_allclose(total["w"], params["w"] + updates["w"], rtol=1e-6)


def test_evaluation_keeps_the_best_parameters(trainer, advanced):
    state, metrics = trainer.validate(advanced[0], trainer.data, 3)
    assert state.best_loss == metrics["loss"] and state.best_update == 3
    tested = jax.tree.map(np.asarray, state.average)
    jax.tree.map(np.testing.assert_array_equal, state.best, tested)
    # A worse network, later.
    worse = jax.tree.map(
        lambda leaf: jax.device_put(-50 * np.asarray(leaf), leaf.sharding),
        state.average,
    )
    state, metrics = trainer.validate(state._replace(average=worse), trainer.data, 6)
    assert metrics["loss"] > state.best_loss
    assert (state.best_update, state.waited) == (3, 1)
    jax.tree.map(np.testing.assert_array_equal, state.best, tested)


def test_last_parameters_can_be_tested(config, advanced):
    last = Trainer(changed(config, training={"tested": "last"}))
    state, _ = last.validate(advanced[0]._replace(best_loss=jnp.zeros(1)), last.data, 6)
    assert (state.best_loss, state.best_update, state.waited) == (0, 6, 1)
    jax.tree.map(np.testing.assert_array_equal, state.best, state.average)


def test_test_loss_is_that_of_the_whole_text(trainer, advanced):
    """Compares with one call on the split, preceded by one character."""
    task = trainer.task
    params = of_network(advanced[0].params)
    codes = np.asarray(task.text.codes[1139:1200], np.int32)
    _, logits = applied(task.model)(params, codes[None, :-1])
    evaluate = jax.jit(task.evaluate, static_argnums=2)
    metrics = evaluate(params, trainer.data, "test")
    likelihoods = np.exp(np.asarray(logits[0], float))
    wanted = -np.log(likelihoods[range(60), codes[1:]] / likelihoods.sum(-1)).mean()
    np.testing.assert_allclose(metrics["loss"], wanted, rtol=1e-5)
    assert metrics["characters"] == 60


def test_samples_equal_the_sequence_call(trainer, advanced):
    """At temperature 0, each character is the likeliest after those before it."""
    task = trainer.task
    params = jax.tree.map(lambda leaf: 3 * leaf, of_network(advanced[0].params))
    prompt = np.array([1, 3])
    sampler = Sampler(task.model, params, temperature=0)
    codes = np.concatenate(list(sampling.stream(sampler, prompt, 59, seed=0)))
    assert len(codes) == 59
    sequence = np.concatenate([prompt, codes]).astype(np.int32)
    _, logits = applied(task.model)(params, sequence[None, :-1])
    np.testing.assert_array_equal(codes, np.asarray(logits)[0, 1:].argmax(-1))


@pytest.mark.parametrize("top_p, kept", [(0.5, [1]), (0.65, [1, 3]), (1, [0, 1, 2, 3])])
def test_samples_have_the_probabilities_of_the_nucleus(top_p, kept):
    p = np.array([0.1, 0.5, 0.19, 0.21])
    sampler = Sampler(None, None, temperature=0.5, top_p=top_p)
    keys = jax.random.split(jax.random.key(0), 4000)
    # Logits are divided by the temperature first.
    draw = jax.jit(jax.vmap(sampler.choose, (0, None)))
    draws = draw(keys, 0.5 * np.log(p))
    wanted = np.where(np.isin(np.arange(4), kept), p, 0)
    got = np.bincount(draws, minlength=4) / 4000
    np.testing.assert_allclose(got, wanted / wanted.sum(), atol=0.04)


@pytest.mark.parametrize(
    "temperature, top_p", [(0, 1.0), (1e-45, 0.9), (1e-37, 1.0), (1.0, 1e-50)]
)
def test_extreme_options_take_the_likeliest_character(temperature, top_p):
    sampler = Sampler(None, None, temperature, top_p)
    logits = jnp.array([30.0, -1e30, 49.99, 50.0])
    keys = jax.random.split(jax.random.key(0), 50)
    draws = jax.jit(jax.vmap(lambda key: sampler.choose(key, logits)))(keys)
    np.testing.assert_array_equal(draws, 3)


def test_resumed_run_equals_an_uninterrupted_one(tmp_path, trainer, monkeypatch):
    whole = run_in(tmp_path / "whole", trainer)
    again = tmp_path / "again"
    for update in (3, 6):
        with monkeypatch.context() as patch:
            patch.setattr("experiments.supervised.loop.Interruption", Stop)
            with pytest.raises(
                Interrupted, match=f"saved at update {update} in"
            ) as end:
                run_in(again, trainer)
        assert end.value.status == 143
    with (again / METRICS).open("a") as file:
        file.write("lines after the checkpoint\n")
    resumed = run_in(again, trainer)
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole.state)
    lines = (again / METRICS).read_bytes()
    assert lines == (tmp_path / "whole" / METRICS).read_bytes()
    splits = [json.loads(line)["split"] for line in lines.splitlines()]
    assert splits == ["train", "train", "validation", "train", "validation"]


def test_loss_that_is_not_finite_ends_the_run(tmp_path, trainer, monkeypatch):
    advance = trainer.advance

    def diverge(*given):
        state, losses = advance(*given)
        return state, np.where(np.arange(len(losses))[:, None] == 1, np.nan, losses)

    monkeypatch.setattr(trainer, "advance", diverge)
    message = "loss of network 0 must be finite, got nan at update 2.*smaller"
    with pytest.raises(ConfigError, match=message):
        run_in(tmp_path / "run", trainer)


@pytest.mark.parametrize("size", [3, 7, 20])
def test_scores_in_parts_are_those_of_the_whole(size, rng):
    """Seven sequences; the last of three parts has one."""
    data = Labelled(
        rng.normal(size=(7, 4, 3)).astype("float32"),
        rng.integers(1, 5, 7),
        np.array([0, 2, 1, 1, 2, 0, 2]),
    )

    def logits_of(part):
        assert part.inputs.shape == (min(size, 7), 4, 3)
        return part.inputs.sum(1) * part.lengths[:, None]

    logits = data.inputs.astype(float).sum(1) * data.lengths[:, None]
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    confusion = np.zeros((3, 3))
    np.add.at(confusion, (data.labels, logits.argmax(1)), 1)
    got = scores(logits_of, data, 3, size)
    np.testing.assert_allclose(got["loss"], -log_p[range(7), data.labels].mean(), 1e-5)
    np.testing.assert_allclose(got["accuracy"], 100 * confusion.trace() / 7, 1e-6)
    np.testing.assert_array_equal(got["confusion"], confusion)


def test_epoch_has_every_sequence_once():
    """Eight sequences in batches of three: two are left out of each epoch."""
    data = Labelled(jnp.arange(8), None, jnp.arange(8))
    draw = jax.jit(partial(drawn, data, jax.random.key(0), batch=3))
    epochs = np.array([draw(update=n).labels for n in range(8)]).reshape(4, 6)
    assert all(len(set(epoch)) == 6 for epoch in epochs.tolist())
    assert len(set(map(tuple, epochs.tolist()))) == 4


def test_checksum_of_images_sees_every_array():
    sets = [Images(np.full((2, 3, 3), n), np.arange(2)) for n in range(3)]
    found = {sha256_of(Digits(*sets))}
    for at in range(3):
        for field in Images._fields:
            new = getattr(sets[at], field).copy()
            new.flat[-1] += 1
            others = [*sets]
            others[at] = sets[at]._replace(**{field: new})
            found.add(sha256_of(Digits(*others)))
    assert len(found) == 7


VOWELS = {"updates": 1, "batch": 27, "evaluate_every": 1}


def random_params(init, rng):
    shapes = jax.eval_shape(init, jax.random.key(0))
    return jax.tree.map(
        lambda leaf: rng.normal(scale=0.5, size=leaf.shape).astype(leaf.dtype), shapes
    )


@pytest.mark.exhaustive
def test_layouts_of_vowels_have_equal_losses(rng):
    """Padded, packed and bucketed batches of the same utterances."""
    config = changed(
        read_config(config_path("japanese-vowels")),
        {"noise": 0.0, "offset": 0.0},
        model={"features": 5, "dropout": 0.0},
        training=VOWELS,
    )
    tasks = {
        layout: JapaneseVowelsTask(changed(config, {"layout": layout}))
        for layout in ("padded", "packed", "bucketed")
    }
    params = random_params(tasks["padded"].init, rng)
    losses = {}
    for layout, task in tasks.items():
        batch = task.batch(task.data, jax.random.key(1), 2)
        loss = jax.jit(partial(task.loss, carry=(), update=2))
        losses[layout], _ = loss(params, batch, key=jax.random.key(2))
        if layout == "bucketed":
            padded = jax.jit(partial(tasks["padded"].loss, carry=(), update=2))
            same, _ = padded(params, (batch[0], None), key=jax.random.key(2))
    np.testing.assert_allclose(losses["packed"], losses["padded"], rtol=1e-5)
    np.testing.assert_allclose(losses["bucketed"], same, rtol=1e-5)


@pytest.mark.parametrize("held_out, count", [(True, 216), (False, 270)])
@pytest.mark.parametrize("layout", ["padded", "packed", "bucketed"])
def test_epoch_of_vowels_has_every_utterance(layout, held_out, count):
    config = read_config(config_path("japanese-vowels"))
    options = {"layout": layout, "held_out": held_out}
    config = changed(config, options, training=VOWELS)
    task = JapaneseVowelsTask(config)
    assert len(task.data["train"].labels) == count
    assert task.splits == (("validation", "test") if held_out else ("test",))
    order = task.data["order"]
    epochs = np.split(order, 50)
    for epoch in (epochs[0], epochs[-1]):
        assert set(epoch.ravel()) == set(range(count))
    assert not np.array_equal(epochs[0], epochs[1])


@pytest.mark.exhaustive
def test_error_of_adding_is_that_of_the_last_step():
    """Compares with NumPy, for a network whose output is the last number."""
    config = changed(
        read_config(config_path("adding-100")), {"length": 4}, training={"batch": 3}
    )
    task = AddingTask(config)
    last = SimpleNamespace(apply=lambda _, inputs, **options: (None, inputs[:, -1, :1]))
    task.model = last
    draw = jax.jit(partial(task.batch, task.data))
    batch = draw(jax.random.key(1), 2)
    assert batch.inputs.shape == (3, 4, 2)
    other = draw(jax.random.key(1), 3)
    assert not np.array_equal(batch.inputs, other.inputs)
    loss, _ = jax.jit(task.loss)(None, batch, (), jax.random.key(2), 2)
    numbers, markers = np.moveaxis(np.asarray(batch.inputs, float), -1, 0)
    errors = numbers[:, -1] - (numbers * markers).sum(1)
    np.testing.assert_allclose(loss, (errors**2).mean(), rtol=1e-5)
    # The last number is in the sum with probability 1/2: the mean of 1/3 and 1/2.
    evaluate = jax.jit(task.evaluate, static_argnums=2)
    tested = [evaluate(None, (), split)["loss"] for split in task.splits]
    assert tested[0] != tested[1]
    np.testing.assert_allclose(tested, 5 / 12, atol=0.05)


def test_frames_of_an_utterance_share_an_offset():
    config = read_config(config_path("japanese-vowels"))
    config = changed(config, {"noise": 0.0, "offset": 0.5}, training=VOWELS)
    task = JapaneseVowelsTask(config)
    batch, _ = task.batch(task.data, jax.random.key(1), 2)
    rows = task.data["order"][2]
    offsets = batch.inputs - task.data["train"].inputs[rows]
    np.testing.assert_allclose(offsets, offsets[:, :1] + 0 * offsets, atol=1e-5)
    assert 0.4 < offsets[:, 0].std() < 0.6


def test_patches_are_those_of_numpy():
    films = np.random.RandomState(0).rand(2, 3, 8, 12, 1).astype("float32")
    patches = np.asarray(to_patches(films))
    assert patches.shape == (2, 3, 2, 3, 16)
    part = films[1, 2, 4:8, 8:12, 0]
    np.testing.assert_array_equal(patches[1, 2, 1, 2], part.ravel())
    np.testing.assert_array_equal(from_patches(patches), films[..., 0])


def test_forecast_is_fed_back(rng):
    """Compares with a loop over steps of the forecaster."""
    config = changed(
        read_config(config_path("moving-digits")),
        {"given": 3, "asked": 2, "size": 24},
        model={"features": 2},
        training={"batch": 2},
    )
    task = MovingDigitsTask(config)
    params = random_params(task.init, rng)
    films = np.asarray(jax.jit(task.batch)(task.data, jax.random.key(1), 0))
    given = films[:, :3]

    def by_steps(network):
        carry, _ = network.encoder(given[:, :2], return_carry=True)
        frame, frames = given[:, 2], []
        for _ in range(2):
            carry, logits = network.forecaster.step(carry, frame)
            frames.append(logits)
            frame = 1 / (1 + jnp.exp(-logits))
        return jnp.stack(frames, 1)

    wanted = jax.jit(nn.apply(by_steps, task.model))({"params": params})
    got = jax.jit(task.model.apply, static_argnums=2)({"params": params}, given, 2)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    loss, _ = jax.jit(task.loss)(params, films, (), jax.random.key(2), 0)
    p = 1 / (1 + np.exp(-np.asarray(wanted, float)))
    y = np.asarray(films[:, 3:])
    np.testing.assert_allclose(
        loss, -(y * np.log(p) + (1 - y) * np.log1p(-p)).mean(), rtol=1e-5
    )


SMALL = {
    "adding-100": {"task.length": 3},
    "char-lm": {"task.window": 3},
    "copying-1000": {"task.lag": 2},
    "copying-30": {"task.lag": 2},
    "japanese-vowels": {},
    "moving-digits": {"task.given": 2, "task.asked": 1, "task.size": 24},
    "order-of-two": {},
    "pixels": {"task.order": "rows"},
}


# Of 8 devices, as many as divide the batch.
DEVICES = {"pixels": 8, "japanese-vowels": 3}


def each_config():
    for name in data_names():
        marks = [pytest.mark.several_devices] * (name in DEVICES)
        marks += [pytest.mark.exhaustive] * (name != "copying")
        yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [*each_config()])
def test_every_config_trains_and_is_tested(name, text, tmp_path, capsys):
    options = {"model.features": 2, "training.updates": 1, "seeds": 1} | SMALL[name]
    if name == "char-lm":
        options["task.file"] = text
    words = [f"--{key}={value}" for key, value in options.items()]
    folder = tmp_path / "run"
    assert cli.main(["run", name, *words, "--out", str(folder), "--traceback"]) == 0
    result = json.loads((folder / RESULT).read_text())
    assert np.isfinite([split["loss"] for split in result["metrics"].values()]).all()
    assert "test" in result["metrics"]
    assert result["best_updates"] == [1]
    assert result["devices"] == DEVICES.get(name, 1)
    environment = result["environment"]
    all_devices = 8 if name in DEVICES else 1
    assert (environment["devices"], environment["processes"]) == (all_devices, 1)
    capsys.readouterr()
    drawing = ["sample", str(folder), "--characters", "7", "--prompt", "ab"]
    if name == "char-lm":
        assert cli.main(drawing) == 0
        said = capsys.readouterr().out
        assert said.startswith("ab") and len(said) == 2 + 7 + 1
    else:
        assert cli.main(drawing) == 2
        assert "`sample` needs a language model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, message",
    [
        ("char-lm --model.cell GRUcell", "unknown cell `GRUcell`; did you mean"),
        ("moving-digits --model.cell LSTMCell", "expected one of|did you mean `Conv"),
        ("moving-digits --model.dropout 0.5", "`model.dropout` must be 0.0 for films"),
        ("pixels --training.batch 5000", "`training.batch` must be at most 1147"),
        ("japanese-vowels --training.tested best", "must be 'last' if `task.held_out`"),
        ("pixels --model.embedding 4", "`model.embedding` must be 0 for pixels"),
        ("pixels --task.folder mine", "`folder` is read only if .* got mine"),
        ("char-lm --processes 2", "`--processes 2` needs `--coordinator`"),
        ("char-lm --task.file nowhere.txt", "nowhere.txt cannot be read"),
    ],
)
def test_mistake_ends_before_the_folder_is_made(options, message, tmp_path, capsys):
    folder = tmp_path / "run"
    assert cli.main(["run", *options.split(), "--out", str(folder)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and re.search(message, lines[0]), lines
    assert not folder.exists()


def test_names_of_cells_are_those_of_the_library():
    assert {"LSTMCell", "GRUCell", "MGUCell", "LSTM1997Cell"} <= set(cell_names())
    assert MADE.keys() <= set(cell_names()) and "ConvGRUCell" not in cell_names()
    assert cell_names("flax") == [
        name for name in dir(nn) if name in cell_names() and name not in MADE
    ]
    assert cell_names(is_conv=True) == ["ConvGRUCell", "ConvLSTMCell"]
