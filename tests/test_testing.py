"""check_cell finds what is right, slow and wrong."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from cases import CELLS, FORMS, each_cell
from test_engine_transformations import CustomGradientCell
from user_cells import USER_CELLS, OwnCell

import rnncells


class LeakyCell(OwnCell):
    """Right; the cells below each break one rule."""

    def recur(self, carry, projected):
        h = 0.9 * carry + 0.1 * nn.tanh(self.affine(carry, "h") + projected)
        return h, h


class MixingCell(LeakyCell):
    def project(self, inputs):
        projected = self.affine(inputs, "i")
        return projected - projected.mean(0)


class BatchMixingCell(LeakyCell):
    def recur(self, carry, projected):
        carry, output = super().recur(carry, projected)
        return carry - (carry.mean(0) if carry.ndim > 1 else 0), output


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


class OneValueCell(LeakyCell):
    def recur(self, carry, projected):
        return super().recur(carry, projected)[0]


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


WRONG = {
    MixingCell: "a step of a batch differs",
    BatchMixingCell: "a step of a batch differs",
    GrowingCell: "a new carry with the shapes of the old",
    UnfinishedCell: "does not define ['recur', 'carry_shape']",
    OneValueCell: "must return (new_carry, output)",
}


@each_cell(always=FORMS)
def test_our_cells_are_right_and_fast(name):
    case = CELLS[name]
    report = rnncells.check_cell(case.make(), (2, *case.input_shape))
    assert [finding.kind for finding in report.findings] == ["right"] * 4, report


@pytest.mark.parametrize("cell", [LeakyCell, DeepCell, *USER_CELLS.values()])
def test_user_cells_are_right(cell):
    report = rnncells.check_cell(cell(4), (2, 3))
    assert report.ok, report
    assert len(report.findings) == 4


@pytest.mark.parametrize("cell", WRONG)
def test_wrong_cells_are_found_and_the_fault_is_named(cell):
    report = rnncells.check_cell(cell(4), (2, 3))
    assert not report.ok
    wrong = [finding.text for finding in report.findings if finding.kind == "wrong"]
    assert any(WRONG[cell] in text for text in wrong), report


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

    class ShrinkingCell(nn.GRUCell):
        def __call__(self, carry, inputs):
            carry, output = super().__call__(carry, inputs)
            return carry[..., :2], output

    report = rnncells.check_cell(ShrinkingCell(4), (2, 3))
    assert not report.ok and "changes the carry" in str(report)


def test_random_cells_are_slow_and_not_wrong():
    report = rnncells.check_cell(MoodyCell(4), (2, 3))
    assert report.ok and "random numbers" in str(report)


def test_leaves_of_inputs_may_have_fewer_axes():
    report = rnncells.check_cell(TimedCell(4), (jnp.ones((2, 3)), jnp.ones(2)))
    assert [finding.kind for finding in report.findings] == ["right"] * 4, report


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell"])
def test_cells_that_wrap_cells_can_be_checked(name):
    cell = getattr(rnncells, name)(4)
    around = rnncells.ZoneoutCell(cell, deterministic=True)
    report = rnncells.check_cell(around, (2, 3))
    assert report.ok, report
    drawing = rnncells.check_cell(rnncells.ZoneoutCell(cell), (2, 3))
    assert "with `deterministic=True`" in str(drawing)
