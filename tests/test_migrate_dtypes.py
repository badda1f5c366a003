"""The dtype of carries: JAX's default float before Flax 0.7, then `param_dtype`."""

import pytest
from programs import without_reasons

from rnncells.migrate.migration import migrate

HEAD = "import os\n\nimport flax.linen as nn\nimport jax\nimport jax.numpy as jnp\n\n"
X64 = {
    "an option": "jax.config.update('jax_enable_x64', True)\n",
    "an environment variable": "os.environ['JAX_ENABLE_X64'] = '1'\n",
    "a context": "with jax.experimental.enable_x64():\n    train()\n",
    "an attribute": "jax.config.jax_enable_x64 = True\n",
    "a cell in float64": "big = nn.GRUCell(8, param_dtype=jnp.float64)\n",
    "a cell of unknown dtype": "big = nn.GRUCell(8, param_dtype=args.dtype)\n",
    "a cell with a dtype in a dict": "big = nn.GRUCell(**{'features': 8, "
    "'param_dtype': 'float64'})\n",
}
NARROW = {
    "nothing": "",
    "another option": "jax.config.update('jax_debug_nans', True)\n",
    "a cell in half precision": "small = nn.GRUCell(8, param_dtype=jnp.bfloat16)\n",
    "a cell in float32": "small = nn.GRUCell(8, param_dtype='float32')\n",
}
OF_CLASS = "c = nn.GRUCell.initialize_carry(k, (2,), 4)\n"
OF_CELL = "cell = nn.GRUCell(4{})\nc = cell.initialize_carry(k, (2,), 4)\n"
MARKED = OF_CELL.replace("\nc", "\n# TODO(rnncells): RC03\nc")
NEW = "cell = nn.GRUCell(4{})\nc = cell.initialize_carry(k, (2, 4))\n"


def rewritten(code):
    once = migrate((HEAD + code).encode()).data
    assert migrate(once).data is once
    return without_reasons(once.decode()).removeprefix(HEAD)


@pytest.mark.parametrize("above", X64.values(), ids=X64)
def test_a_carry_of_a_class_stays_in_the_default_float(above):
    cell = "nn.GRUCell(4, param_dtype=float, parent=None)"
    new = f"c = {cell}.initialize_carry(k, (2, 4))\n"
    assert rewritten(above + OF_CLASS) == above + new


@pytest.mark.parametrize("above", NARROW.values(), ids=NARROW)
def test_a_carry_of_a_class_stays_in_float32(above):
    new = "c = nn.GRUCell(4, parent=None).initialize_carry(k, (2, 4))\n"
    assert rewritten(above + OF_CLASS) == above + new


@pytest.mark.parametrize("above", X64.values(), ids=X64)
def test_a_carry_of_a_cell_in_float32_is_marked_if_it_was_float64(above):
    assert rewritten(above + OF_CELL.format("")) == above + MARKED.format("")
    layer = "rnn = nn.RNN(nn.GRUCell(), 4)\n"
    marks = "# TODO(rnncells): RC01\n# TODO(rnncells): RC04\n"
    assert rewritten(above + layer) == above + marks + layer


@pytest.mark.parametrize("dtype", ["float", "jnp.float64", "'float64'", "jnp.float_"])
@pytest.mark.parametrize("above", ["", X64["an option"]], ids=["alone", "x64"])
def test_a_carry_of_a_cell_in_the_default_float_is_rewritten(dtype, above):
    given = f", param_dtype={dtype}"
    assert rewritten(above + OF_CELL.format(given)) == above + NEW.format(given)


@pytest.mark.parametrize("dtype", ["jnp.float32", "jnp.bfloat16", "d"])
def test_a_carry_of_a_cell_in_another_dtype_is_marked(dtype):
    given, above = f", param_dtype={dtype}", X64["an option"]
    assert rewritten(above + OF_CELL.format(given)) == above + MARKED.format(given)
    expected = NEW if dtype == "jnp.float32" else MARKED
    assert rewritten(OF_CELL.format(given)) == expected.format(given)
