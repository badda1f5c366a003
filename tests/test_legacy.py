"""The shim beside today's Flax; old programs on it are in test_old_programs.py."""

import datetime
import subprocess
import sys
import warnings
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnncells
from rnncells import legacy

KEY = jax.random.PRNGKey(0)
X = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
quiet = pytest.mark.filterwarnings("ignore:.*is of Flax <= 0.6:DeprecationWarning")


def test_a_line_is_noticed_once_until_filters_change():
    def old(count):
        for _ in range(count):
            legacy.GRUCell.initialize_carry(KEY, (2,), 4)

    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            old(3)
        assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(DeprecationWarning, match="write GRUCell"):
        old(1)


def test_strict_mode_may_be_set_from_outside():
    code = (
        "import jax, rnncells.legacy as nn; "
        "nn.GRUCell.initialize_carry(jax.random.key(0), (2,), 4)"
    )
    environment = {"RNNCELLS_LEGACY_STRICT": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(rnncells.__file__).parent.parent,
    )
    assert done.returncode == 1
    assert "TypeError: `GRUCell.initialize_carry(" in done.stderr


CELLS = {
    "LSTMCell": lambda module: module.LSTMCell(4),
    "OptimizedLSTMCell": lambda module: module.OptimizedLSTMCell(features=4),
    "GRUCell": lambda module: module.GRUCell(4, dtype=jnp.float32),
    "ConvLSTMCell": lambda module: module.ConvLSTMCell(4, (3,)),
    "MGUCell": lambda module: module.MGUCell(4),
    "SimpleCell": lambda module: module.SimpleCell(4),
}


@pytest.mark.parametrize("name", CELLS)
def test_new_forms_are_those_of_flax_and_not_noticed(name):
    x = X[..., None] if name == "ConvLSTMCell" else X

    def results(module):
        cell = CELLS[name](module)
        carry = cell.initialize_carry(KEY, x[:, 0].shape)
        step = cell.init_with_output(KEY, carry, x[:, 0])
        rnn = module.RNN(CELLS[name](module), return_carry=True)
        return carry, step, rnn.init_with_output(KEY, x, seq_lengths=jnp.array([5, 2]))

    expected, actual = results(nn), results(legacy)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for old, new in zip(*map(jax.tree.leaves, (expected, actual)), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=1e-6)


@quiet
def test_carries_are_float32_as_they_were():
    for dtype in (jnp.float16, jnp.bfloat16):
        cell = legacy.GRUCell(param_dtype=dtype)
        assert cell.initialize_carry(KEY, (2,), 4).dtype == jnp.float32
    new = legacy.GRUCell(4, param_dtype=jnp.bfloat16)
    assert new.initialize_carry(KEY, (2, 3)).dtype == jnp.bfloat16


@quiet
@pytest.mark.parametrize("options", [(True, True), (True, True, 2), (True, True, True)])
def test_positional_arguments_behind_the_size(options):
    """After `return_carry` came `unroll` in Flax 0.6.7, and `reverse` since."""
    rnn = legacy.RNN(legacy.GRUCell(), 4, *options)
    has_unroll = len(options) > 2 and options[2] == 2
    assert (rnn.cell_size, rnn.time_major, rnn.return_carry) == (4, True, True)
    assert rnn.unroll == (2 if has_unroll else 1)
    assert rnn.reverse == (len(options) > 2 and not has_unroll)


def test_what_a_shim_cannot_see_is_an_error():
    with pytest.raises(TypeError, match="the first argument of a cell was `gate_fn`"):
        legacy.LSTMCell(nn.hard_sigmoid)
    with pytest.raises(TypeError, match="or else `segmentation_mask`"):
        rnn = legacy.RNN(legacy.GRUCell(4))
        mask = jnp.ones((2, 5), int)
        rnn.init(KEY, X, seq_lengths=jnp.array([5, 5]), segmentation_mask=mask)


def test_shim_has_the_names_of_flax():
    for name in dir(nn):
        if not name.startswith("_"):
            assert getattr(legacy, name) is not None
    assert legacy.Dense is nn.Dense and "Dense" in dir(legacy)
    with pytest.raises(AttributeError, match="no attribute 'LSTM'"):
        _ = legacy.LSTM


def test_shim_goes_when_it_was_promised_to():
    """Fails when it is time to remove `rnncells.legacy`: not before both have come."""
    readme = (Path(rnncells.__file__).parent.parent / "README.md").read_text()
    promise = f"{legacy.REMOVAL_VERSION}, and not before {legacy.REMOVAL_DATE.year}"
    assert promise in readme
    version = tuple(map(int, rnncells.__version__.split(".")[:2]))
    is_version = version >= tuple(map(int, legacy.REMOVAL_VERSION.split(".")))
    assert not is_version or datetime.date.today() >= legacy.REMOVAL_DATE
    assert not is_version, "remove rnncells/legacy, its tests and its page"
