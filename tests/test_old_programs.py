"""Old programs on the shim and rewritten, and the examples in docs/migration.md."""

import ast
import re
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from levels import by_level
from programs import PROGRAMS, assert_same, run, with_imports_of
from rnncells_migrate.rewrite import marks, rewrite

from rnncells import legacy

pytestmark = pytest.mark.default

rewrite = cache(rewrite)
# The shim does not support a gate function as the first argument.
ON_SHIM = [name for name, source in PROGRAMS.items() if "SHIM = False" not in source]


# Slow programs whose forms others have, such as `time_loop` and `comments`.
LIKE_OTHERS = """
seq2seq training proposal other_lifts called_at_once x64 layers_in_setup aliases
bidirectional conv_lstm scanned_lstm_rl scan_class vmap_keys conv_lstm_old_name
features_from_carry qualified_names scanned_rl rnn_wrapper own_cell nested_classes
features_from_carry_call setup lambdas cell_as_attribute scan_alias_carry setup_list
""".split()
QUICK = [(name,) for name in PROGRAMS if name not in LIKE_OTHERS]


@pytest.mark.parametrize("name", by_level(PROGRAMS, QUICK))
def test_old_programs_give_the_same_results(name):
    """Equal parameter names, initial values (to the bit), and outputs."""
    source = PROGRAMS[name]
    expected = run(name, with_imports_of("old_linen", source))

    if name in ON_SHIM:
        on_shim = with_imports_of("rnncells.legacy", source)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert_same(run(name, on_shim), expected)
        assert_warnings(caught, f"{name}.py", on_shim.splitlines())
    new, _, _ = rewrite(source)
    if "LEFT = " in source:
        assert len(marks(new)) == int(source.partition("LEFT = ")[2].split()[0])
    else:
        assert not marks(new)
        assert_same(run(name, new), expected)


def assert_warnings(caught, file, lines):
    """Fails unless each old form warned once, at its line."""
    assert caught
    for warning in caught:
        assert issubclass(warning.category, DeprecationWarning)
        assert warning.filename == file
        text = str(warning.message)
        assert "was removed after Flax 0.6" in text and "Write " in text
        near = "".join(lines[warning.lineno - 1 : warning.lineno + 4])
        form = re.match(r"`(?:\w+\.)?(\w+)", text)[1]
        assert (form if form == "initialize_carry" else "(") in near
    places = [(warning.lineno, str(warning.message)) for warning in caught]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("name", by_level(ON_SHIM, 12))
def test_strict_mode_raises_type_error(name):
    with legacy.strict(), pytest.raises(TypeError, match="was removed after Flax 0.6"):
        run(name, with_imports_of("rnncells.legacy", PROGRAMS[name]))


def test_the_example_of_flax_gives_what_its_proposal_shows():
    """FLIP 3099 makes the carry by the cell, from the shape of the inputs."""
    before = PROGRAMS["proposal"]
    made, lstm = re.findall(r"^    (?:carry|lstm) = .*\n", before, re.MULTILINE)
    proposed = lstm + "    carry = lstm.initialize_carry(key1, input_shape=x.shape)\n"
    after = before.replace(made, "").replace(lstm, proposed)
    new = rewrite(before)[0]
    assert_same(run("new", new), run("after", after))


GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "migration.md").read_text()
HEAD = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)[1]


def sides(diff):
    """Returns the old and the new text of a diff without omitted lines."""
    lines = diff.splitlines()
    return tuple(
        "".join(f"{line[1:]}\n" for line in lines if not line.startswith(sign))
        for sign in "+-"
    )


SHIM, *DIFFS = (sides(diff) for diff in re.findall(r"```diff\n(.*?)```", GUIDE, re.S))
TITLES = re.findall(r"^### (\d+)\. ", GUIDE, re.MULTILINE)
PATTERNS = {
    title: (HEAD + before, HEAD + after)
    for title, (before, after) in zip(TITLES, DIFFS, strict=True)
}
RUN = [
    title
    for title, (before, after) in PATTERNS.items()
    if "TODO" not in after and before != after
]


@pytest.mark.parametrize("title", PATTERNS)
def test_each_diff_is_the_output_of_the_command(title):
    before, after = PATTERNS[title]
    made, _, _ = rewrite(before)
    # The guide is formatted: its long lines are split.
    assert ast.unparse(ast.parse(made)) == ast.unparse(ast.parse(after))
    assert re.findall(r"#.*", made) == re.findall(r"#.*", after)


def program(code):
    """Returns code as a program that returns the names that its last line sets."""
    names = ast.unparse(ast.parse(code).body[-1].targets[0])
    return f"{code}\n\ndef run():\n    return {names}\n"


@pytest.mark.parametrize("title", by_level(RUN, 5))
def test_each_rewritten_program_gives_the_same_results(title):
    before, after = map(program, PATTERNS[title])
    assert_same(
        run("after", after), run("before", with_imports_of("old_linen", before))
    )


def test_the_command_reverts_the_imports_of_the_shim():
    before, after = SHIM
    exec(after, {})
    assert rewrite(after)[0] == before


# The names that the section on other changes uses.
TREE = {"a": 1, "b": 2}
PARAMS = {"a": {"kernel": np.ones(2)}, "b": {"kernel": -np.ones(2)}}
NAMESPACE = {
    "Mapping": Mapping,
    "TrainState": TrainState,
    "flax": flax,
    "jax": jax,
    "jnp": jnp,
    "model": nn.Dense(2),
    "optax": optax,
    "params": PARAMS,
    "tree": TREE,
}


def stepped(state):
    """Returns parameters after two steps with gradients of 1."""
    ones = jax.tree.map(jnp.ones_like, state.params)
    state = state.apply_gradients(grads=ones).apply_gradients(grads=ones)
    return [float(leaf[0]) for leaf in jax.tree.leaves(state.params)]


TODAY = {
    "jax.tree.map(abs, tree)": TREE,
    "jax.tree.map(max, tree, tree)": TREE,
    "jax.tree_util.tree_map(max, tree, tree)": TREE,
    "jax.tree.leaves(tree)": [1, 2],
    "jnp.zeros(2).at[0].set(1)": [1, 0],
    "jax.Array": jax.Array,
    "from jax import config": None,
    "flax.core.unfreeze(variables)": {"params": PARAMS},
    'flax.core.copy(variables, {"step": 1})': {"params": PARAMS, "step": 1},
    'flax.core.pop(variables, "params")': ({}, PARAMS),
    "isinstance(variables, Mapping)": True,
    # Each step of Adam equals the rate; with momentum the second is 1.9 times the rate.
    "optax.adam(0.1)": [0.8, -1.2],
    "optax.sgd(0.1, 0.9)": [0.71, -1.29],
    "flax.linen.Dense(features=2)": nn.Dense(2),
}
LINES = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", GUIDE, re.MULTILINE)


def outcome(code):
    """Returns the value of code from the guide, or the kind of error that it raises."""
    run = exec if code.startswith("from") else eval
    try:
        value = run(code, NAMESPACE | {"variables": {"params": PARAMS}})
    except (AttributeError, ImportError, TypeError) as error:
        return type(error)
    return stepped(value) if isinstance(value, TrainState) else value


def is_equal(actual, expected):
    if isinstance(actual, type | nn.Module) or isinstance(expected, type | nn.Module):
        return actual == expected
    try:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, 1e-5), actual, expected
        )
    except (AssertionError, ValueError):
        return False
    return True


@pytest.mark.parametrize("before, today", LINES)
def test_other_old_code_fails_and_its_replacement_works(before, today):
    expected = next(value for key, value in TODAY.items() if key in today)
    assert is_equal(outcome(today), expected)
    assert not is_equal(outcome(before), expected)


def test_cells_of_flax_capture_preactivations_where_the_shim_captures_parameters():
    names = {}
    exec("".join(re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)), names)
    carry, x = names["carry"], names["x"][:, 0]

    def captured(filter_fn):
        return legacy.LSTMCell(4).apply(
            *(names["variables"], carry, x),
            capture_intermediates=filter_fn,
            mutable=["intermediates"],
        )[1]

    kernel, bias = captured(True)["intermediates"]["hi"]["__call__"][0]
    expected = carry[1] @ kernel + bias
    np.testing.assert_allclose(names["pre_activation"], expected, rtol=1e-5)
    assert captured(lambda module, name: isinstance(module, nn.Dense)) == {}
