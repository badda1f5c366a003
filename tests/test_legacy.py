"""The shim equals Flax, today's and old; whole programs are in test_old_programs.py."""

import dataclasses
import datetime
import importlib
import inspect
import re
import warnings
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import old_linen
import pytest
from levels import by_level
from programs import CALL, assert_same, run_python

import rnncells
from rnncells import legacy

KEY = jax.random.PRNGKey(0)
X = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
quiet = pytest.mark.filterwarnings("ignore:.*removed after Flax 0.6:DeprecationWarning")


CELLS = {
    "LSTMCell": lambda module: module.LSTMCell(4),
    "OptimizedLSTMCell": lambda module: module.OptimizedLSTMCell(features=4),
    "GRUCell": lambda module: module.GRUCell(4, dtype=jnp.float32),
    "ConvLSTMCell": lambda module: module.ConvLSTMCell(4, (3,)),
    "MGUCell": lambda module: module.MGUCell(4),
    "SimpleCell": lambda module: module.SimpleCell(4),
}


@pytest.mark.parametrize("name", by_level(CELLS, 2))
def test_new_forms_equal_flax_and_do_not_warn(name):
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
def test_old_carries_are_float32():
    for dtype in (jnp.float16, jnp.bfloat16):
        cell = legacy.GRUCell(param_dtype=dtype)
        assert cell.initialize_carry(KEY, (2,), 4).dtype == jnp.float32
    new = legacy.GRUCell(4, param_dtype=jnp.bfloat16)
    assert new.initialize_carry(KEY, (2, 3)).dtype == jnp.bfloat16


@quiet
@pytest.mark.parametrize("options", [(True, True), (True, True, 2), (True, True, True)])
def test_positional_arguments_after_the_size(options):
    """After `return_carry` came `unroll` in Flax 0.6.7, and `reverse` since."""
    rnn = legacy.RNN(legacy.GRUCell(), 4, *options)
    has_unroll = len(options) > 2 and options[2] == 2
    assert (rnn.cell_size, rnn.time_major, rnn.return_carry) == (4, True, True)
    assert rnn.unroll == (2 if has_unroll else None)
    assert rnn.reverse == (len(options) > 2 and not has_unroll)


def test_masks_of_wrong_shape_raise_value_error():
    rnn = legacy.RNN(legacy.GRUCell(4))
    with pytest.warns(DeprecationWarning, match="Write `seq_lengths="):
        with pytest.raises(ValueError, match="`segmentation_mask` must have the shape"):
            rnn.init(KEY, X, segmentation_mask=jnp.ones((3, 5), int))


CALLS = {
    "no arguments": lambda: legacy.GRUCell.initialize_carry(),
    "the shape of today, on a class": lambda: legacy.LSTMCell.initialize_carry(
        KEY, (2, 3)
    ),
    "no size": lambda: legacy.GRUCell(4).initialize_carry(KEY, batch_dims=(2,)),
    "too many": lambda: legacy.GRUCell(4).initialize_carry(KEY, (2,), 4, None, 5),
    "of the image": lambda: legacy.ConvLSTMCell.initialize_carry(KEY, (2,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_of_missing_arguments_name_the_method(name):
    with pytest.raises(TypeError, match=r"^\w+Cell\.initialize_carry\(\) "):
        CALLS[name]()


NEW = legacy.GRUCell(4)
TWO = {"seq_lengths": jnp.ones(2, int), "segmentation_mask": jnp.ones((2, 5), int)}


def rnn(*args, cell=None, **options):
    return legacy.RNN(cell or legacy.GRUCell(), *args, **options)


@quiet
@pytest.mark.parametrize(
    "text, call",
    [
        ("of a cell was `gate_fn`", lambda: legacy.LSTMCell(nn.hard_sigmoid)),
        ("Pass `seq_lengths` or `segm", lambda: rnn(cell=NEW).init(KEY, X, **TWO)),
        ("got 2", lambda: legacy.GRUCell.initialize_carry(KEY, 2, 4)),
        ("`cell_size` twice, by position and by name", lambda: rnn(4, cell_size=4)),
        ("at most 10 positional .* got 11", lambda: rnn(4, *[False] * 10)),
        ("SimpleCell .* Write", lambda: rnn(4, cell=legacy.SimpleCell(4)).init(KEY, X)),
        ("GRUCell .* Write RNN", lambda: rnn(4, cell=nn.GRUCell(4)).init(KEY, X)),
    ],
)
def test_wrong_old_forms_raise_type_error(text, call):
    with pytest.raises(TypeError, match=text):
        call()


def test_signatures_and_docstrings_of_initialize_carry():
    def names(function):
        return list(inspect.signature(function).parameters)

    scanned = nn.scan(legacy.LSTMCell, variable_broadcast="params")
    for cls in (legacy.LSTMCell, legacy.GRUCell, legacy.ConvLSTMCell, scanned):
        assert names(cls.initialize_carry) == names(old_linen.two_parts)
        assert "batch_dims: shape of the batch" in cls.initialize_carry.__doc__
    today = rnncells.GRUCell(4).initialize_carry
    own = legacy.GRUCell(4).initialize_carry
    assert inspect.signature(own) == inspect.signature(today)


def test_initialize_carry_of_a_class_can_be_a_static_argument_of_jit():
    """The method of a class is equal and hashes equal at each access."""
    assert legacy.GRUCell.initialize_carry == legacy.GRUCell.initialize_carry
    assert hash(legacy.GRUCell.initialize_carry) != hash(
        legacy.LSTMCell.initialize_carry
    )


@pytest.mark.parametrize("name", CELLS)
def test_all_cells_derive_from_the_base(name):
    cell = CELLS[name](legacy)
    assert isinstance(cell, legacy.RNNCellBase)
    assert isinstance(cell, getattr(rnncells, name))


@quiet
def test_replaced_modules_equal_those_of_flax():
    """`dataclasses.replace` on old forms does not warn."""

    def results(module):
        cell = module.GRUCell()
        rnn = module.RNN(cell, 4)
        changes = {"gate_fn": nn.hard_sigmoid}, {"reverse": True}
        with legacy.strict():
            cell = dataclasses.replace(cell, **changes[0])
            rnn = dataclasses.replace(rnn, cell=cell, **changes[1])
        step = cell.init_with_output(KEY, jnp.ones((2, 4)), X[:, 0])
        return step, rnn.init_with_output(KEY, X)

    assert_same(results(legacy), results(old_linen))


def test_cells_from_default_factories_equal_those_of_flax():
    def results(module):
        class Model(nn.Module):
            cell: nn.Module = dataclasses.field(default_factory=module.LSTMCell)

            def __call__(self, x):
                return self.cell((jnp.ones((2, 4)), jnp.ones((2, 4))), x)

        return Model().init_with_output(KEY, X[:, 0])

    expected = results(old_linen)
    with pytest.warns(DeprecationWarning, match=r"Write `LSTMCell\(f") as caught:
        assert_same(results(legacy), expected)
    lines, first = inspect.getsourcelines(results)
    # The line that constructs the model, and so the cell.
    last = first + len(lines) - 1
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, last)]


@quiet
@pytest.mark.parametrize(
    "options",
    by_level([{}, {"reverse": True}, {"time_major": True}], [{"time_major": True}]),
)
@pytest.mark.parametrize("name", ["seq_lengths", "segmentation_mask"])
def test_rows_of_length_0_run_all_steps_in_old_forms(name, options):
    """Flax, then as now, takes the carry at index 0 - 1, the last."""
    lengths = jnp.array([0, 2])
    mask = (jnp.arange(5) < lengths[:, None]).astype(int)
    given = {name: lengths if name == "seq_lengths" else mask}
    x = jnp.swapaxes(X, 0, 1) if "time_major" in options else X

    def results(module):
        rnn = module.RNN(module.GRUCell(), 4, return_carry=True, **options)
        both = module.Bidirectional(
            module.RNN(module.GRUCell(), 4),
            module.RNN(module.LSTMCell(), 4),
            return_carry=True,
            time_major=options.get("time_major", False),
        )
        layers = (rnn, both) if "reverse" not in options else (rnn,)
        return [layer.init_with_output(KEY, x, **given) for layer in layers]

    assert_same(results(legacy), results(old_linen))


def test_rows_of_length_0_keep_their_carry_in_new_forms():
    rnn, lengths = legacy.RNN(legacy.GRUCell(4), return_carry=True), jnp.array([0, 2])
    (carry, _), _ = rnn.init_with_output(KEY, X, seq_lengths=lengths)
    np.testing.assert_array_equal(carry[0], 0)


NAMES = """
import pydoc
import re
def names(module):
    found = {}
    exec(f"from {module} import *", found)
    return set(found)
linen = names("flax.linen")
import rnncells.legacy
own = {"ConvLSTM", "REMOVAL_DATE", "REMOVAL_VERSION", "set_strict", "strict"}
# Flax imports this module on demand.
own |= {"partitioning"}
assert names("rnncells.legacy") == linen | own
public = {name for name in dir(rnncells.legacy) if name[0] != "_"}
assert public == (linen | own) - {"__builtins__"}
assert len(pydoc.render_doc(rnncells.legacy).splitlines()) < 200
"""


def test_the_shim_has_all_names_of_flax_linen():
    run_python("-c", NAMES)
    assert legacy.Dense is nn.Dense
    with pytest.raises(AttributeError, match="no attribute 'LSTM'"):
        _ = legacy.LSTM


# Modules of Flax 0.6.11 that Flax still has.
MODULES = """
activation attention combinators dtypes initializers kw_only_dataclasses linear module
normalization partitioning pooling spmd stochastic summary transforms
""".split()


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_the_modules_of_flax(name):
    own = importlib.import_module(f"rnncells.legacy.{name}")
    assert own is importlib.import_module(f"flax.linen.{name}")
    assert own is getattr(legacy, name)


def test_the_module_recurrent_has_the_names_of_flax():
    from rnncells.legacy.recurrent import LSTMCell, flip_sequences

    assert legacy.recurrent.LSTMCell is LSTMCell is legacy.LSTMCell
    assert flip_sequences is nn.recurrent.flip_sequences
    with pytest.raises(AttributeError, match="'rnncells.legacy.recurrent' has no"):
        _ = legacy.recurrent._select_last


def test_the_shim_is_removed_as_promised():
    """Fails when `rnncells.legacy` must be removed: in this version, after this day."""
    number, day = legacy.REMOVAL_VERSION, legacy.REMOVAL_DATE
    docs = Path(rnncells.__file__).parent.parent / "docs"
    when = f"version {number}, and not before {day}"
    assert when in (docs / "migration.md").read_text()
    page = " ".join((docs / "how-to" / "migrating.md").read_text().split())
    assert f"version {number}, and not before {day.year}" in page
    assert re.search(rf"(?s)ersion {number} .* not before\s+{day} ", legacy.__doc__)
    version = tuple(map(int, rnncells.__version__.split(".")[:2]))
    is_version = version >= tuple(map(int, number.split(".")))
    assert not is_version or datetime.date.today() >= day
    assert not is_version, "remove rnncells/legacy, its tests and its page"


CARRY = jnp.cos(jnp.arange(24.0)).reshape(2, 3, 4)
C, H = CARRY[:, :2]
IMAGE = jnp.sin(jnp.arange(60.0)).reshape(1, 3, 5, 4)
IMAGES = jnp.cos(jnp.arange(120.0)).reshape(2, 3, 5, 4)

# A cell, what makes its carry (an iterator is used up), and the inputs.
CARRIES = {
    "a row": ("GRUCell", lambda: H[:1], X[:, 0]),
    "no batch": ("GRUCell", lambda: H[0], X[:, 0]),
    "more axes than the inputs": ("GRUCell", lambda: CARRY[:, :1], X[0, :2]),
    "an axis of one": ("GRUCell", lambda: CARRY[:, :1], X),
    "half precision": ("GRUCell", lambda: H.astype(jnp.float16), X[:, 0]),
    "integers": ("GRUCell", lambda: jnp.ones((2, 4), int), X[:, 0]),
    "a list": ("LSTMCell", lambda: [C, H], X[:, 0]),
    "one array": ("OptimizedLSTMCell", lambda: CARRY[:, :2], X[:, 0]),
    "an iterator": ("LSTMCell", lambda: iter((C, H)), X[:, 0]),
    "two rows": ("OptimizedLSTMCell", lambda: (C[:1], H[0]), X[:, 0]),
    "a number": ("LSTMCell", lambda: (0.5, H), X[:, 0]),
    "a column": ("LSTMCell", lambda: (C[:, :1], H), X[:, 0]),
    "a narrow h": ("LSTMCell", lambda: (C, H[:, :1]), X[:, 0]),
    "a batch of c alone": ("LSTMCell", lambda: (CARRY[:, :2], H), X[:, 0]),
    "half of it in half": ("LSTMCell", lambda: (C.astype(jnp.float16), H), X[:, 0]),
    "images": ("ConvLSTMCell", lambda: [IMAGE[0], IMAGE], IMAGES),
    "a pixel": ("ConvLSTMCell", lambda: (0.0, IMAGE[:, :1, :1]), IMAGES),
    "images in half": ("ConvLSTM", lambda: (IMAGES.astype(jnp.float16),) * 2, IMAGES),
}


@quiet
@pytest.mark.parametrize(
    "name, carry, inputs", by_level(CARRIES.values(), 6), ids=CARRIES
)
def test_old_cells_accept_the_carries_of_old_flax(name, carry, inputs):
    def results(module):
        args = () if inputs.ndim < 4 else (4, (3, 3))
        cell = getattr(module, name)(*args)
        stepped, params = cell.init_with_output(KEY, carry(), inputs)
        return stepped, params, cell.apply(params, carry(), inputs)

    assert_same(results(legacy), results(old_linen))


@quiet
@pytest.mark.parametrize("name", ["GRUCell", "LSTMCell", "ConvLSTMCell"])
def test_random_initial_carries_are_those_of_old_flax(name):
    """Each part of a carry is drawn with its own key."""

    def carry(module):
        size = (3, 4) if name == "ConvLSTMCell" else 4
        init_fn = nn.initializers.normal()
        return getattr(module, name).initialize_carry(KEY, (2,), size, init_fn)

    assert_same(carry(legacy), carry(old_linen))


@quiet
@pytest.mark.parametrize(
    "carry",
    [(C, CARRY[0]), (C, H, H), (C, 0.5), CARRY[0], None],
    ids=["batch", "parts", "number", "array", "none"],
)
def test_other_carries_raise_an_error_with_the_expected_shapes(carry):
    shapes = r"\(\(2, None\), \(2, None\)\)"
    with pytest.raises(ValueError, match=f"^`carry` of LSTMCell.* {shapes} .* got "):
        legacy.LSTMCell().init(KEY, carry, X[:, 0])


@quiet
def test_cells_with_features_accept_the_carries_of_rnncells_only():
    with pytest.raises(ValueError, match=r"^`carry` of GRUCell.* got \(\(2, 4\), "):
        legacy.GRUCell().init(KEY, (C, H), X[:, 0])
    with pytest.raises(ValueError, match=r"^`carry` of GRUCell.* got \(1, 4\)"):
        legacy.GRUCell(4).init(KEY, H[:1], X[:, 0])
    with pytest.raises(ValueError, match=r"^`carry` of LSTMCell.* got \["):
        legacy.LSTMCell(4).init(KEY, [C, H], X[:, 0])


@quiet
def test_layers_run_old_cells_with_the_fast_loop():
    """Which alone has a choice of memory, and is for cells with the call of all."""
    for cell in (legacy.GRUCell(), legacy.LSTMCell()):
        params = legacy.RNN(cell, 4).init(KEY, X)
        rnn = legacy.RNN(cell, cell_size=4, memory="recompute")
        assert_same(rnn.apply(params, X), legacy.RNN(cell, 4).apply(params, X))


# Users' own cells.

FILMS = jnp.sin(jnp.arange(120.0)).reshape(2, 5, 4, 3)

STATIC = f"""
class Cell(nn.RNNCellBase):
    rate: float = 0.5

{CALL}
    @staticmethod
    def initialize_carry(rng, batch_dims, size):
        return jax.random.normal(rng, (*batch_dims, size))
"""
WITH_INITIALISER = f"""
class Cell(nn.RNNCellBase):
{CALL}
    @staticmethod
    def initialize_carry(
        key, batch_dims, size, init_fn=nn.initializers.normal(), scale=2
    ):
        return scale * init_fn(key, (*batch_dims, size))
"""
OF_INSTANCE = f"""
class Cell(nn.RNNCellBase):
    start: float = 0.0

{CALL}
    def initialize_carry(self, rng, batch_dims, size):
        return self.start + jax.random.normal(rng, (*batch_dims, size))
"""
WITH_FEATURES = """
class Cell(nn.RNNCellBase):
    features: int = 6

    @nn.compact
    def __call__(self, carry, x):
        carry = nn.tanh(nn.Dense(carry.shape[-1])(x) + carry)
        return carry, nn.Dense(self.features)(carry)

    def initialize_carry(self, rng, batch_dims, size):
        return jax.random.normal(rng, (*batch_dims, size))
"""
OF_IMAGES = f"""
class Cell(nn.RNNCellBase):
{CALL}
    @staticmethod
    def initialize_carry(rng, batch_dims, size):
        return jax.random.normal(rng, (*batch_dims, *size))
"""
DERIVED = """
class Cell(nn.LSTMCell):
    @staticmethod
    def initialize_carry(rng, batch_dims, size):
        carry = jax.random.normal(rng, (*batch_dims, size))
        return carry, -carry
"""
AROUND = """
class Cell(nn.RNNCellBase):
    cell: nn.Module

    def __call__(self, carry, x):
        carry, y = self.cell(carry, x)
        return carry, y + x.mean(-1, keepdims=True)

    def initialize_carry(self, key, batch_dims, size):
        return self.cell.initialize_carry(key, batch_dims, size)
"""

# Cells for Flax <= 0.6.11, how they are made, by further fields too, and their size.
OWN_CELLS = {
    "static": (STATIC, "Cell(rate=0.25, {})", 4),
    "with an initializer": (WITH_INITIALISER, "Cell({})", 4),
    "of the instance": (OF_INSTANCE, "Cell(start=2.0, {})", 4),
    "with features that are others": (WITH_FEATURES, "Cell({})", 4),
    "with features that are the size": (WITH_FEATURES, "Cell({})", 6),
    "of images": (OF_IMAGES, "Cell({})", (4, 3)),
    "derived": (DERIVED, "Cell({})", 4),
    "around another": (AROUND, "Cell(nn.GRUCell(), {})", 4),
}


def results(module, code, size):
    """Returns what the `rnn` of a program gives."""
    names = {"nn": module, "jax": jax, "jnp": jnp, "size": size, "cell_size": size}
    exec(compile(code, "program.py", "exec"), names)
    rnn = names["rnn"].copy(return_carry=True)
    x = FILMS if isinstance(size, tuple) else X
    return rnn.init_with_output(KEY, x, init_key=jax.random.key(1))


@pytest.mark.parametrize(
    "source, cell, size", by_level(OWN_CELLS.values(), 4), ids=OWN_CELLS
)
def test_own_cells_give_the_results_of_old_flax(source, cell, size):
    """The warning says what they need; docs/migration.md has an example."""
    code = f"{source}\ncell = {cell.format('')}\nrnn = nn.RNN(cell, cell_size)\n"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = results(legacy, code, size)
    assert_same(actual, results(old_linen, code, size))
    texts = {str(warning.message) for warning in caught}
    (text,) = (text for text in texts if text.startswith("`RNN("))
    assert "`RNN(cell)`, and construct the cell with `features=cell_size`." in text
    assert "Cell needs a field `features`, a property `num_feature_axes`" in text
    assert "an instance method `initialize_carry(self, key, input_shape)`" in text


@pytest.mark.parametrize("name", by_level(["LSTMCell", "SimpleCell"], 1))
@pytest.mark.parametrize("time_major", by_level([False, True], 1))
def test_derived_cells_get_the_shape_of_a_step_as_in_flax(name, time_major):
    def results(module):
        class Cell(getattr(module, name)):
            def initialize_carry(self, rng, input_shape):
                carry = jax.random.normal(rng, (*input_shape[:-1], self.features))
                return (carry, -carry) if name == "LSTMCell" else carry

        rnn = module.RNN(Cell(4), time_major=time_major, return_carry=True)
        return rnn.init_with_output(KEY, X, init_key=jax.random.key(1))

    assert_same(results(legacy), results(nn))


def test_cells_of_rnncells_get_a_sample_of_a_step():
    class Cell(rnncells.LSTMCell):
        def initialize_carry(self, key, sample_input):
            return super().initialize_carry(key, sample_input.shape)

    assert_same(
        legacy.RNN(Cell(4)).init_with_output(KEY, X),
        legacy.RNN(rnncells.LSTMCell(4)).init_with_output(KEY, X),
    )
