"""`python -m experiments inspect RUN`: its table, its pictures and its numbers."""

import dataclasses
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import jit_apply, random_like
from data_configs import changed, language_model, write_finished, write_text

from experiments import cli
from experiments.reports.svg import save
from experiments.runs.folder import CONFIG, DATA, INSPECT, WEIGHTS, to_json
from experiments.settings.reading import config_path, read_config, to_dict
from experiments.supervised.inspection import layers_of
from experiments.supervised.inspection_figures import draw
from experiments.supervised.tasks import TASKS
from rnncells import diagnostics

pytestmark = pytest.mark.default

FEATURES = 3


def params_of(task):
    """Returns random parameters of a task's network."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return random_like(np.random.default_rng(7), shapes)


@pytest.fixture
def run(tmp_path):
    config = language_model(write_text(tmp_path / "text.txt"))
    return write_finished(config, tmp_path / "run", params_of), tmp_path / "run"


def test_inspect_prints_a_table_and_writes_pictures(run, capsys):
    task, folder = run
    options = ["--sequences", "2", "--steps", "7"]
    assert cli.main(["inspect", str(folder), *options]) == 0
    said = capsys.readouterr().out
    rows = [line.split(" | ") for line in said.splitlines() if "layers_0" in line]
    assert [row[1] for row in rows[:3]] == ["f", "i", "o"]
    assert rows[3][1] == "12" and "(lag 6)" in rows[3][-1]
    names = ["gates-layers_0", "gradients", "spectra", "saturation", "drift"]
    pictures = {path.stem: path.read_text() for path in (folder / INSPECT).iterdir()}
    assert sorted(pictures) == sorted(names)
    text = task.text.decode(task.data["test"][:7])
    shown = {" ": "␣", "\n": "⏎"}
    marks = re.findall(r">([^<>]|⏎)</text>", pictures["gates-layers_0"])
    assert "".join(shown.get(x, x) for x in text) in "".join(marks)


@pytest.mark.parametrize(
    "name, changes",
    [
        ("adding-100", {"length": 9}),
        ("copying-1000", {"lag": 4}),
        ("japanese-vowels", {}),
        ("pixels", {"order": "rows"}),
    ],
)
def test_losses_of_examples_are_those_at_the_ends(name, changes):
    config = changed(
        read_config(config_path(name)),
        changes,
        model={"features": FEATURES, "layers": 1, "dropout": 0.0},
    )
    task = TASKS[config.task.name](config)
    examples = task.examples(task.data, 3, 5)
    variables = {"params": params_of(task)}
    _, outputs = jit_apply(
        task.model, variables, examples.inputs, lengths=examples.lengths
    )
    outputs = np.asarray(outputs, np.float64)
    if name == "adding-100":
        marked = examples.inputs[..., 0] * examples.inputs[..., 1]
        expected = np.sum((outputs[:, 0] - marked.sum(1)) ** 2)
    else:
        last = outputs[:, -1] if outputs.ndim == 3 else outputs
        if name == "copying-1000":
            labels = examples.inputs[:, 9]  # the last symbol to copy
        else:
            labels = task.data["test"].labels[:3]
        odds = np.take_along_axis(last, np.asarray(labels)[:, None], -1)[:, 0]
        expected = np.sum(np.log(np.exp(last).sum(-1)) - odds)
    np.testing.assert_allclose(examples.loss(jnp.asarray(outputs)), expected, rtol=1e-5)


@pytest.mark.exhaustive
def test_padding_is_left_out_in_both_directions(tmp_path):
    config = changed(
        read_config(config_path("japanese-vowels")), model={"features": FEATURES}
    )
    config = dataclasses.replace(
        config, model=dataclasses.replace(config.model, cell="GRUCell", layers=1)
    )
    task = TASKS["japanese-vowels"](config)
    params, examples = params_of(task), task.examples(task.data, 2, 100)
    lengths = np.asarray(examples.lengths)
    assert lengths[0] != lengths[1]
    layers = layers_of(task, params, examples, 100)
    assert set(layers) == {"layers_0/forward_rnn", "layers_0/backward_rnn"}
    for name, layer in layers.items():
        assert layer.gates == ["r", "z"]
        for row, length in enumerate(lengths):
            for norms in (layer.loss_gradients, layer.carry_gradients):
                assert np.isfinite(norms[row, :length]).all()
                assert np.isnan(norms[row, length:]).all()
            assert layer.carry_gradients[row, 0] == pytest.approx(1)
            # The mean over time gives every step the same weight.
            assert layer.loss_gradients[row, 0] > 0, name
    # The backward layer ends at the first step.
    record = jax.jit(partial(diagnostics.record, task.model, jacobians=True))
    found = record({"params": params}, examples.inputs, lengths=lengths)
    steps = found["stack/layers_0/backward_rnn"].jacobians[0]
    product = np.linalg.multi_dot([np.asarray(step) for step in steps[:3]])
    expected = np.linalg.norm(product) / np.sqrt(len(product))
    backward = layers["layers_0/backward_rnn"].carry_gradients
    np.testing.assert_allclose(backward[0, 3], expected, rtol=1e-5)
    assert len(save(draw(layers, examples), tmp_path / "inspect")) == 6


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "`inspect` needs the folder of a run, got nothing"),
        (["nowhere"], "`inspect` needs the folder of a finished run, got `nowhere`"),
        (["RUN", "--steps", "0"], r"`--steps` must be an integer in \[1, .*, got 0"),
        (["RUN", "--network", "1"], r"`--network` must be in \[0, 1\), got 1"),
        (["RUN", "--step", "3"], "unknown option `--step`; did you mean `--steps`"),
    ],
)
def test_wrong_use_of_inspect_is_one_line(words, message, run, capsys):
    words = [str(run[1]) if word == "RUN" else word for word in words]
    assert cli.main(["inspect", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and re.search(message, lines[0]), lines


def test_inspect_refuses_other_data_and_other_runs(run, tmp_path, capsys):
    _, folder = run
    (folder / DATA).write_text('{"sha256": "0"}')
    assert cli.main(["inspect", str(folder)]) == 2
    assert "has changed since the run" in capsys.readouterr().err
    for name, message in (
        ("reber-1-1", "needs a run on a data set, got a run of 1997"),
        ("moving-digits", "does not support `moving-digits`"),
    ):
        other = tmp_path / name
        other.mkdir()
        (other / CONFIG).write_text(to_json(to_dict(read_config(config_path(name)))))
        (other / WEIGHTS).write_bytes(b"")
        assert cli.main(["inspect", str(other)]) == 2
        assert message in capsys.readouterr().err
