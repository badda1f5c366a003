"""check_cell finds what is right, slow and wrong, or skips its checks."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from cases import CELLS, each_cell
from levels import by_level
from test_engine_corners import CustomGradientCell
from user_cells import (
    USER_CELLS,
    FlaxCell,
    MultiplicativePeepholeCell,
    OwnCell,
    PlainWeightCell,
)

import rnncells

pytestmark = pytest.mark.default


class LeakyCell(OwnCell):
    """Right; the cells below each break one rule."""

    def recur(self, carry, projected):
        h = 0.9 * carry + 0.1 * nn.tanh(self.affine(carry, "h") + projected)
        return h, h


class MixingCell(LeakyCell):
    def project(self, inputs):
        projected = self.affine(inputs, "i")
        return projected - projected.mean(0)


class PaddingCell(LeakyCell):
    """It keeps its carry if a batch has only zeros, instead of a row."""

    def __call__(self, carry, inputs):
        new, output = super().__call__(carry, inputs)
        return jnp.where(jnp.all(inputs == 0), carry, new), output


class FirstAxisCell(LeakyCell):
    def project(self, inputs):
        return self.affine(inputs, "i") / inputs.shape[1]


class GrowingCell(LeakyCell):
    def recur(self, carry, projected):
        h, output = super().recur(carry, projected)
        return jnp.concatenate([h, h], axis=-1), output


class DeepCell(LeakyCell):
    """Right; a layer of the carry that is not affine."""

    def setup(self):
        self.gates("i")
        layers = [nn.Dense(self.features), nn.tanh, nn.Dense(self.features)]
        self.recurrent = nn.Sequential(layers)

    def recur(self, carry, projected):
        h = nn.tanh(self.recurrent(carry) + projected)
        return h, h


class PonderingCell(LeakyCell):
    """Right; it takes its product twice, in a loop."""

    def recur(self, carry, projected):
        def once(_, h):
            return nn.tanh(self.affine(h, "h") + projected)

        h = jax.lax.fori_loop(0, 2, once, carry)
        return h, h


class UnfinishedCell(rnncells.RNNCellBase):
    features: int
    num_feature_dims = 1

    def project(self, inputs):
        return inputs


class ForeignCell(FlaxCell):
    """Right; a cell without our base."""

    @nn.compact
    def __call__(self, carry, inputs):
        h = nn.tanh(nn.Dense(self.features)(jnp.concatenate([carry, inputs], -1)))
        h = self.changed(h)
        return h, h

    def changed(self, h):
        return h


class OutputCell(ForeignCell):
    def __call__(self, carry, inputs):
        return super().__call__(carry, inputs)[1]


class ShrinkingCell(ForeignCell):
    def changed(self, h):
        return h[..., :2]


class CarryOfOneRowCell(ForeignCell):
    @nn.nowrap
    def initialize_carry(self, key, input_shape):
        return jnp.zeros(self.features)


class SowingCell(ForeignCell):
    """Right; a step writes to collections, but needs none."""

    def changed(self, h):
        self.sow("intermediates", "h", h)
        self.sow("losses", "h", h)
        return self.perturb("h", h)


class LogarithmicCell(ForeignCell):
    """Right; some of its values are NaN."""

    def changed(self, h):
        return jnp.log(h + 0.5)


class BatchNormCell(ForeignCell):
    def changed(self, h):
        return nn.BatchNorm(use_running_average=False)(h)


class ConstantCell(ForeignCell):
    """Right; random numbers in place of its constants would be NaN."""

    def changed(self, h):
        tau = self.variable("constants", "tau", jnp.ones, h.shape[-1:])
        mask = self.variable("masks", "mask", jnp.ones, h.shape[-1:], bool)
        return h * jnp.sqrt(tau.value) * mask.value


class KeyCell(ForeignCell):
    @nn.nowrap
    def initialize_carry(self, key, input_shape):
        return jax.random.split(key, input_shape[:-1])


class MoodyCell(LeakyCell):
    """Right, but it draws random numbers."""

    def setup(self):
        super().setup()
        self.dropout = nn.Dropout(0.5, deterministic=False)

    def recur(self, carry, projected):
        return super().recur(carry, self.dropout(projected))


class TimedCell(LeakyCell):
    """Its inputs are `(*batch, features)` and `(*batch,)`."""

    def project(self, inputs):
        x, seconds = inputs
        return self.affine(x, "i") * seconds[..., None]


class WrongLinearCell(rnncells.MinGRUCell):
    """Its `recur` is not what its coefficients say."""

    def recur(self, carry, projected):
        return super().recur(2 * carry, projected)


class TooWideCell(rnncells.MinGRUCell):
    def coefficients(self, projected):
        return tuple(jnp.repeat(x, 2, -1) for x in super().coefficients(projected))


class WrongMatrixCell(rnncells.DeltaNetCell):
    def recur(self, carry, projected):
        carry, output = super().recur(carry, projected)
        return carry, output + 1


WRONG = {
    WrongLinearCell: "`coefficients` must agree with `recur`",
    TooWideCell: "shapes that broadcast to its shapes",
    WrongMatrixCell: "`update` must agree with `recur`",
    MixingCell: "a step of a batch differs",
    PaddingCell: "a step of a batch differs",
    FirstAxisCell: "a step on a single row, without batch axes, raised IndexError",
    GrowingCell: "`init` raised ValueError(",
    UnfinishedCell: "does not define ['recur', 'carry_shape']",
    OutputCell: "`__call__` of OutputCell must return (new_carry, output), got an "
    "array of shape (3, 4).",
    ShrinkingCell: "`__call__` of ShrinkingCell must return (new_carry, output), a new "
    "carry with the structure, shapes and dtypes of the old, float64[3,4], got "
    "float64[3,2]",
    CarryOfOneRowCell: "`initialize_carry` of CarryOfOneRowCell must return arrays "
    "with the batch axes of its inputs, (3,), as their first axes, got the shapes (4,)",
}
# Cells that cannot be checked.
SKIPPED = {
    BatchNormCell: "a step changes the collections ['batch_stats']",
    KeyCell: "the carry has random keys",
    MoodyCell: "the cell draws random numbers",
}
RIGHT = [LeakyCell, DeepCell, SowingCell, LogarithmicCell, ConstantCell]
RIGHT += USER_CELLS.values()
FEW_RIGHT = [SowingCell, ConstantCell, MultiplicativePeepholeCell, PlainWeightCell]


# LSTMs are checked inside a wrapper below, a GRU as a cell with `__call__` only.
@each_cell(default=["ConvLSTMCell-peepholes"])
def test_our_cells_are_right_and_fast(name):
    case = CELLS[name]
    report = rnncells.check_cell(case.make(), (2, *case.input_shape))
    assert [finding.kind for finding in report.findings] == ["right"] * 4, report


@pytest.mark.parametrize("cell", by_level(RIGHT, [FEW_RIGHT[0]]))
def test_user_cells_are_right(cell):
    report = rnncells.check_cell(cell(4), (2, 3))
    assert report.ok, report
    assert len(report.findings) == 4


@pytest.mark.parametrize("cell", WRONG)
def test_wrong_cells_are_found_and_the_fault_is_named(cell):
    report = rnncells.check_cell(cell(4), (2, 3))
    assert not report.ok
    [wrong] = [finding.text for finding in report.findings if finding.kind == "wrong"]
    assert WRONG[cell] in wrong


def test_weights_outside_of_products_are_named():
    report = rnncells.check_cell(PonderingCell(4), (2, 3))
    assert report.ok
    assert report.findings[-1].kind == "slow"
    assert "['h']['kernel'] outside of its 0 products" in report.findings[-1].text


def test_cells_without_products_are_named():
    class DecayingCell(LeakyCell):
        def recur(self, carry, projected):
            h = nn.tanh(0.5 * carry + projected)
            return h, h

    finding = rnncells.check_cell(DecayingCell(4), (2, 3)).findings[-1]
    assert finding.kind == "right"
    assert "so RNN runs the plain loop" in finding.text


def test_cells_of_the_plain_loop_are_named():
    report = rnncells.check_cell(CustomGradientCell(4), (2, 3))
    assert report.ok
    assert "in the plain loop: the fast loop needs" in report.findings[-1].text


def test_cells_with_only_call_are_right_and_fast():
    report = rnncells.check_cell(nn.GRUCell(4), (2, 3))
    assert [f.kind for f in report.findings] == ["right"] * 4
    assert "only in its 2 products" in str(report)


@pytest.mark.parametrize("cell", SKIPPED)
def test_cells_that_cannot_be_checked_are_skipped(cell):
    report = rnncells.check_cell(cell(4), (2, 3))
    assert report.ok
    assert str(report).startswith(f"skipped  {SKIPPED[cell]}")
    assert "so all checks were skipped." in str(report)


def test_leaves_of_inputs_may_have_fewer_axes():
    report = rnncells.check_cell(TimedCell(4), (jnp.ones((2, 3)), jnp.ones(2)))
    assert [finding.kind for finding in report.findings] == ["right"] * 4, report


@pytest.mark.parametrize("name", by_level(["LSTMCell", "GRUCell"], ["LSTMCell"]))
def test_cells_that_wrap_cells_can_be_checked(name):
    cell = getattr(rnncells, name)(4)
    report = rnncells.check_cell(rnncells.ZoneoutCell(cell), (2, 3))
    assert {finding.kind for finding in report.findings} == {"right"}, report
