"""The reader of configs: what it accepts, what it refuses, and in which words."""

import ast
import dataclasses
import itertools
import json
import re
from functools import partial
from pathlib import Path

import jax
import pytest

from experiments import settings
from experiments.paper1997.learners.network import count
from experiments.paper1997.learners.published import initial_weights, network_of
from experiments.settings.config import Stopping
from experiments.settings.reading import (
    config_names,
    config_path,
    paper_names,
    read_config,
    readings,
    to_dict,
)
from experiments.settings.rules import ConfigError
from experiments.settings.tasks import TemporalOrder, TwoClasses

pytestmark = pytest.mark.default

KEY = jax.random.key(0)

TEXT = """\
# The header,
# two lines.

# Not the header.
title = "A title"
trials = 3

[paper]
table = "9"
row = "6a"
sequences = [31_390]
weights = 156
wrong = 1
test_sequences = 2560
trials = 20

[task]
name = "temporal-order"

[model]
blocks = 2
block_size = 3
weight_range = 0.1
input_gate_bias = [-2, -4.0]

[learning]
rate = 1
max_sequences = 50

[stopping]
on = "training"
tolerance = 0.3
mean_error = [0.1]

[readings.other]
kind = "silent"
"learning.rate" = 0.5
"model.g" = "1"
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A function that writes `a.toml` into the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(text=TEXT):
        path = tmp_path / "a.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_temporal_order_6a_has_the_values_of_the_paper():
    experiment = read_config(config_path("temporal-order-6a"))
    paper, model, learning = experiment.paper, experiment.model, experiment.learning
    assert (paper.row, paper.sequences, paper.wrong) == ("6a", (31390,), 1)
    assert (paper.test_sequences, paper.trials) == (2560, 20)
    assert experiment.task == TemporalOrder(
        positions=((10, 20), (50, 60)), lengths=(100, 110)
    )
    assert (model.blocks, model.block_size, model.weight_range) == (2, 2, 0.1)
    assert (model.input_gate_bias, model.output_gate_bias) == ((-2.0, -4.0), None)
    assert (learning.rate, learning.update) == (0.5, "sequence")
    assert experiment.stopping == Stopping(
        on="training", tolerance=0.3, window=2000, wrong=(0,), mean_error=(0.1,)
    )


def test_readings_replace_the_values_they_name(file):
    literal, other = read_config(file()), read_config(file(), "other")
    assert (other.learning.rate, other.model.g) == (0.5, "1")
    back = dataclasses.replace(
        other,
        learning=dataclasses.replace(other.learning, rate=1.0),
        model=dataclasses.replace(other.model, g="2"),
    )
    assert back == literal
    found = readings(file())
    assert found["other"].kind == "silent"
    with pytest.raises(ConfigError, match="no reading `othr`; did you mean `other`?"):
        read_config(file(), "othr")
    with pytest.raises(ConfigError, match=r"\[readings.other\]: `kind` must be one of"):
        readings(file(TEXT.replace('"silent"', '"loud"')))


@pytest.mark.parametrize("name", config_names())
def test_every_reading_loads(name):
    path = config_path(name)
    for other in readings(path):
        assert read_config(path, other) != read_config(path)


@pytest.mark.parametrize("name", paper_names())
def test_every_network_has_the_weights_of_the_paper(name):
    experiment = read_config(config_path(name))
    network = network_of(experiment)
    draw = partial(initial_weights, network, experiment.model)
    weights = jax.eval_shape(jax.vmap(draw, out_axes=-1), jax.random.split(KEY, 2))
    assert count(network, weights) == experiment.paper.weights


def test_lists_become_tuples(file):
    task = 'name = "temporal-order"\npositions = [[1, 2], [4, 5]]\nlengths = [7, 8]'
    experiment = read_config(file(TEXT.replace('name = "temporal-order"', task)))
    assert experiment.task.positions == ((1, 2), (4, 5))
    assert experiment.task.lengths == (7, 8)
    hash(experiment)


def test_json_holds_all_values(file):
    experiment = read_config(file())
    table = to_dict(experiment)
    assert json.loads(json.dumps(table)) == table
    assert table["task"]["positions"] == [[10, 20], [50, 60]]
    assert table["model"]["output_gate_bias"] is None
    assert table.keys() == {f.name for f in dataclasses.fields(experiment)}


def test_made_settings_are_checked_as_those_of_files_are():
    with pytest.raises(ConfigError) as caught:
        TwoClasses(length="50")
    expected = "`length` must be an integer in [1, 2**31), got '50'."
    assert str(caught.value) == expected
    with pytest.raises(ConfigError, match="^`information` must be at most `length` 50"):
        dataclasses.replace(TwoClasses(length=50), information=51)
    with pytest.raises(
        ConfigError, match="^unknown key `lenth`; did you mean `length`"
    ):
        TwoClasses(lenth=50)


RATE = "a.toml [learning]: `rate` must be a number in (0, 3.4e+38), got"
GRU = '[baseline]\ncell = "gru"\nbatch = '
MISTAKES = [
    # Types.
    ("trials = 3", "trials = 3.0", "a.toml: `trials` must be an integer in [1, 2**31)"),
    ("rate = 1", 'rate = "fast"', f"{RATE} 'fast'."),
    ("rate = 1", "rate = inf", f"{RATE} inf."),
    ("[-2, -4.0]", "-2.0", "`input_gate_bias` must be a list of numbers, got -2.0."),
    ('= "1"', "= [07:32:00]", "model.g: a value must not be a date or a time, got 07"),
    ("rate = 1", f"rate = 0x{2**63:x}", "a.toml: learning.rate: integers must have at"),
    ("rate = 1", f"rate = {'[' * 9999}", "a.toml: tables and lists must be nested at"),
    ("rate = 1", f"rate = {'[' * 16}{']' * 16}", "nested at most 16 deep."),
    # Keys.
    ("trials = 3", "trails = 3", "unknown key `trails`; did you mean `trials`?"),
    ("blocks = 2", "", "a.toml [model]: missing key `blocks`."),
    ('"temporal-order"', '"temporal-oder"', "did you mean `temporal-order`?"),
    # Rules.
    ("wrong = 1", "wrong = 9999", "a.toml [paper]: `wrong` must be in [0, "),
    ("= 2\n", "= 2\noutput_gates = false\n", "must not contain 'out' if"),
    ("= 2\n", "= 2\ninput_gate_offset = [1]\n", "`input_gate_offset` must be empty or"),
    ("= [0.1]", "= [0.1, 0.2]", "`mean_error` must be empty or have a bound for"),
    ("= [0.1]", "= [0.1]\nwrong = [2000]", "`wrong` must be counts in [0, 2000)"),
    (
        "rate = 1",
        'rate = 1\nupdate = "step"',
        "`learning.update` must be 'sequence' in",
    ),
    ("[stopping]", f"{GRU}7\n[stopping]", "`baseline.batch` must divide 50, got 7."),
    (
        "[stopping]",
        f"{GRU}10\n[growth]\nwindow = 5\n[stopping]",
        "a.toml: `growth.window` must be 0 with a baseline, got 5.",
    ),
    ("blocks = 2", "blocks = 3", "must have one finite number for each of 3"),
    ("= 2\n", '= 2\nbiases = ["cell"]\n', "must not be set if `biases` does not"),
    ("= 2\n", '= 2\nbiases = ["inn"]\n', "must be a subset of ['in', 'cell', 'out']"),
    ("[model]", "lengths = [110, 100]\n[model]", "must be ranges with first <= last"),
    ("[model]", "positions = [[1, 5], [5, 9]]\n[model]", "must increase without"),
    ("[model]", "positions = [[0, 5]]\n[model]", "must lie in [1, 98]"),
]


@pytest.mark.parametrize("old, new, message", MISTAKES)
def test_mistake_is_refused_with_file_section_and_rule(file, old, new, message):
    assert TEXT.count(old) >= 1
    path = file(TEXT.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith("a.toml")


def test_text_that_is_not_utf8_is_refused(file):
    path = file()
    path.write_bytes(b'title = "\xff"')
    with pytest.raises(ConfigError, match=r"^a\.toml: .*utf-8"):
        read_config(path)


# By the type of a field, what its documentation says.
RANGES = {
    r"^Count\b": r"at least 1\b|in \[1,",
    r"\bPositive\b": "> 0",
    r"\bNotNegative\b": r"at least 0\b|from 0",
    r"\bShare\b": r"in \[0, 1\)",
    r"\bSeed\b": r"in \[0, 2\*\*32\)",
}


def test_ranges_in_the_documentation_of_fields_are_those_of_their_types():
    for path in Path(settings.__file__).parent.glob("*.py"):
        classes = ast.walk(ast.parse(path.read_text()))
        bodies = [node.body for node in classes if isinstance(node, ast.ClassDef)]
        for field, text in itertools.chain(*map(itertools.pairwise, bodies)):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                kind = ast.unparse(field.annotation)
                words = " ".join(text.value.value.split())
                for of_type, stated in RANGES.items():
                    if re.search(of_type, kind):
                        assert re.search(stated, words), words


def test_name_and_path_find_the_same_file():
    by_name = config_path("temporal-order-6a")
    assert config_path(by_name) == config_path(str(by_name)) == by_name
