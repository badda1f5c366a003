"""The shim warns about old forms once for each line, and suggests correct code."""

import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import flax.linen as nn
import jax
import jax.numpy as jnp
import old_linen
import pytest
from levels import by_level
from programs import assert_same, run_python

import rnncells
from rnncells import legacy

pytestmark = pytest.mark.default

KEY = jax.random.PRNGKey(0)
X = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
IMAGES = jnp.sin(jnp.arange(120.0)).reshape(2, 5, 4, 3)


def test_a_line_warns_once_until_the_filters_change():
    def old(count):
        for _ in range(count):
            legacy.GRUCell.initialize_carry(KEY, (2,), 4)

    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            old(3)
        assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(DeprecationWarning, match="Write `GRUCell"):
        old(1)


def test_each_old_form_on_a_line_warns():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            legacy.RNN(legacy.GRUCell(), 4), legacy.GRUCell.initialize_carry(KEY, (), 4)
    forms = [str(warning.message).partition(" was removed ")[0] for warning in caught]
    assert forms == [
        "`GRUCell()` without `features`",
        "`RNN(cell, cell_size)`",
        "`GRUCell.initialize_carry(key, batch_dims, size)`",
    ]


def test_warnings_end_with_the_version_of_the_removal():
    with pytest.warns(DeprecationWarning) as caught:
        legacy.GRUCell.initialize_carry(KEY, (2,), 4)
    with legacy.strict(), pytest.raises(TypeError) as raised:
        legacy.GRUCell.initialize_carry(KEY, (2,), 4)
    advice, end = str(raised.value), str(caught[0].message)
    assert end.startswith(f"{advice} (") and len(end) - len(advice) < 60
    assert f"rnncells {legacy.REMOVAL_VERSION}" in end
    assert eval(re.search(r"help\((.*?)\)", end)[1], {"rnncells": rnncells}) is legacy
    assert "`rnncells-migrate` rewrites" in legacy.__doc__


def test_strict_blocks_affect_their_own_thread_only():

    def run_old():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return legacy.GRUCell.initialize_carry(None, (2,), 4)

    with ThreadPoolExecutor(1) as pool:
        with legacy.strict():
            assert pool.submit(run_old).result().shape == (2, 4)
            with pytest.raises(TypeError):
                run_old()
        assert run_old().shape == (2, 4)


@pytest.mark.exhaustive
def test_the_environment_variable_sets_strict_mode():
    code = (
        "import jax, rnncells.legacy as nn; "
        "nn.GRUCell.initialize_carry(jax.random.key(0), (2,), 4)"
    )
    said = run_python("-c", code, fails=True, RNNCELLS_LEGACY_STRICT="1")
    assert "TypeError: `GRUCell.initialize_carry(" in said


@pytest.mark.exhaustive
def test_the_documented_filters_show_warnings_of_imported_modules(tmp_path):
    (tmp_path / "imported.py").write_text(
        "import jax, rnncells.legacy as nn\n"
        "def carry(): return nn.GRUCell.initialize_carry(jax.random.key(0), (2,), 4)\n"
    )
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import imported\n"
    code += "imported.carry()\n"
    (line,) = re.findall(r"^ {4}(warnings\..*)$", legacy.__doc__, re.MULTILINE)
    (option,) = re.findall(r"`python -W (.*?)`", legacy.__doc__)
    text = "imported.py:2: DeprecationWarning: `GRUCell.initialize_carry("
    assert text in run_python("-W", option, "-c", code)
    code += f"import warnings; print(file=sys.stderr); {line}\nimported.carry()"
    before, _, after = run_python("-c", code).partition("\n")
    assert before == "" and text in after


def names(module, x, size, features):
    """Returns the values of the names in old forms and in the suggested code."""
    cells = ("LSTMCell", "GRUCell", "ConvLSTMCell", "ConvLSTM", "RNN", "Bidirectional")
    axes = {"variable_broadcast": "params", "split_rngs": {"params": False}}
    return {
        **{name: getattr(module, name) for name in cells if hasattr(module, name)},
        "Lifted": nn.scan(module.LSTMCell, in_axes=1, out_axes=1, **axes),
        "key": jax.random.PRNGKey(1),
        "batch_dims": (2,),
        "init_fn": nn.initializers.normal(),
        "features": features,
        "kernel_size": (3,),
        "size": size,
        "cell_size": size,
        "segmentation_mask": (jnp.arange(5) < jnp.array([[5], [3]])).astype(int),
        "x": x,
    }


def step(cell):
    carry = jax.random.normal(KEY, (2, 4))
    return cell.init_with_output(KEY, (carry, -carry), X[:, 0])


def scan(cell):
    carry = jax.random.normal(KEY, (2, 4))
    return cell.init_with_output(KEY, (carry, -carry), X)


def step_of_images(cell):
    carry = jax.random.normal(KEY, (2, 4, 6))
    return cell.init_with_output(KEY, (carry, -carry), IMAGES[:, 0])


def call(layer):
    return layer.init_with_output(KEY, IMAGES if "Conv" in str(layer) else X)


def same(carry):
    return carry


# Each old form, the cell in it, and a function whose results must not change.
FORMS = {
    "LSTMCell()": ("", step),
    "Lifted()": ("", scan),
    "ConvLSTM(features, kernel_size)": ("", step_of_images),
    "LSTMCell.initialize_carry(key, batch_dims, size)": ("", same),
    "Lifted.initialize_carry(key, batch_dims, size, init_fn=init_fn)": ("", same),
    "ConvLSTMCell.initialize_carry(key, batch_dims=batch_dims, size=size)": ("", same),
    "cell.initialize_carry(key, batch_dims, size)": ("GRUCell", same),
    "cell.initialize_carry(key, batch_dims, size, init_fn)": ("LSTMCell", same),
    "RNN(cell, cell_size)": ("GRUCell", call),
    "RNN(cell, cell_size=cell_size)": ("ConvLSTMCell", call),
}


def evaluated(form, namespace, cell, made=""):
    """Returns the value of a form, with `cell` constructed from some fields."""
    given = "kernel_size=kernel_size, " if "Conv" in cell else ""
    if given and not made:
        made = "features=size[-1]"
    if cell:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            namespace["cell"] = eval(f"{cell}({given}{made})", namespace)
    return eval(form, namespace)


@pytest.mark.parametrize("form", by_level(FORMS, 6))
def test_the_suggested_code_gives_the_same_results_on_flax(form):
    cell, result = FORMS[form]
    size = (4, 6) if "Conv" in form + cell else 4
    of_old, of_shim, of_flax = (
        names(module, X, size, 6) for module in (old_linen, legacy, nn)
    )
    # The suggested code must not depend on the values.
    of_shim["init_fn"] = nn.initializers.zeros_init()
    with pytest.warns(DeprecationWarning, match="was removed after Flax 0.6") as caught:
        evaluated(form, of_shim, cell)
    (text,) = (str(warning.message) for warning in caught)
    new = re.search(r"Write `([^`]+)`", text)[1]
    made = re.search(r"construct the cell with `([^`]+)`(?: and `([^`]+)`)?", text)
    fields = ", ".join(filter(None, made.groups())) if made else ""
    assert bool(fields) == bool(cell)
    assert_same(
        result(evaluated(new, of_flax, cell, fields)),
        result(evaluated(form, of_old, cell)),
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_line_warns_once_for_all_values(form):
    cell, _ = FORMS[form]
    sizes = [(4, 6), (5, 6), (5, 7)] if "Conv" in form + cell else [4, 5, 6]
    namespace = names(legacy, X, sizes[0], 6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluated("None", namespace, cell)
        code = f"for size in {sizes}:\n    cell_size = size\n    {form}"
        exec(compile(code, "program.py", "exec"), namespace)
    assert [warning.lineno for warning in caught] == [3]


def test_a_mask_warns_once_and_equals_the_suggested_lengths():
    rnn = legacy.RNN(legacy.GRUCell(4))
    params = rnn.init(KEY, X)
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for steps in (5, 3, 4):
            segmentation_mask = jnp.ones((2, steps), int)
            found.append(
                rnn.apply(params, X[:, :steps], segmentation_mask=segmentation_mask)
            )
    (text,) = (str(warning.message) for warning in caught)
    new = re.search(r"Write `([^`]+)`", text)[1]
    expected = eval(
        f"nn.RNN(nn.GRUCell(4)).apply(params, X[:, :4], {new})",
        {**globals(), "params": params, "segmentation_mask": segmentation_mask},
    )
    assert_same(found[-1], expected)


def test_the_suggested_name_is_the_name_in_checkpoints():
    class Model(nn.Module):
        linen: object
        name_told: str | None = None

        @nn.compact
        def __call__(self, carry, x):
            old = getattr(self.linen, "ConvLSTM", nn.ConvLSTMCell)
            told = {} if self.name_told is None else {"name": self.name_told}
            return old(6, (3,), **told)(carry, x)

    carry = (jnp.ones((2, 4, 6)),) * 2
    with pytest.warns(DeprecationWarning, match="name=") as caught:
        params = Model(legacy).init(KEY, carry, IMAGES[:, 0])
    told = re.search(r"name='(\w+)'", str(caught[0].message))[1]
    assert_same(Model(nn, told).init(KEY, carry, IMAGES[:, 0]), params)
