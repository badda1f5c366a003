"""Cells of the shim, in their old form, take the carries that they took."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import old_linen
import pytest
from levels import by_level
from programs import assert_same

from rnncells import legacy

KEY = jax.random.PRNGKey(0)
X = jnp.sin(jnp.arange(30.0)).reshape(2, 5, 3)
CARRY = jnp.cos(jnp.arange(24.0)).reshape(2, 3, 4)
C, H = CARRY[:, :2]
IMAGE = jnp.sin(jnp.arange(60.0)).reshape(1, 3, 5, 4)
IMAGES = jnp.cos(jnp.arange(120.0)).reshape(2, 3, 5, 4)
quiet = pytest.mark.filterwarnings("ignore:.*removed after Flax 0.6:DeprecationWarning")

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


@pytest.mark.exhaustive
@quiet
def test_the_gradient_of_a_learned_carry_is_unchanged():
    def results(module):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                carry = self.param("carry", nn.initializers.normal(), (1, 4))
                cell = module.GRUCell()
                for t in range(x.shape[1]):
                    carry, _ = cell(carry, x[:, t])
                return carry

        params = Model().init(KEY, X)
        gradient = jax.grad(lambda params: Model().apply(params, X).mean())(params)
        # Close, where parameters themselves are the same to the bit.
        return gradient["params"]

    assert_same(results(legacy), results(old_linen))


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
def test_a_pair_as_the_carry_of_a_gru_raises_value_error():
    with pytest.raises(ValueError, match=r"^`carry` of GRUCell.* got \(\(2, 4\), "):
        legacy.GRUCell().init(KEY, (C, H), X[:, 0])


def test_cells_with_features_accept_the_carries_of_rnncells_only():
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
