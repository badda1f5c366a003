"""Errors and warnings: one call for each rule, and what must not raise."""

import pytest
from error_cases import ERROR_CASES, KEY, X, gru, outputs
from flax.typing import Initializer
from user_cells import USER_CELLS

import rnncells

pytestmark = pytest.mark.default


@pytest.mark.parametrize("kind, message, call", ERROR_CASES)
def test_violated_rules_are_explained(kind, message, call):
    expect = pytest.warns if issubclass(kind, Warning) else pytest.raises
    with expect(kind, match=message):
        call()


def test_one_object_in_both_directions_has_one_set_of_parameters():
    rnn = gru()
    with pytest.warns(UserWarning, match="share their parameters"):
        params = rnncells.Bidirectional(rnn, rnn).init(KEY, X)
    assert set(params["params"]) == {"forward_rnn"}


def test_gates_need_a_width():
    class NarrowCell(rnncells.RNNCellBase):
        hidden: int
        num_feature_dims = 1

        def carry_shape(self, input_shape):
            return (self.hidden,)

        def setup(self):
            self.gates("i")

        def project(self, inputs):
            return self.affine(inputs, "i")

    with pytest.raises(ValueError, match="`gates` of NarrowCell needs the width"):
        NarrowCell(4).init(KEY, X, method="project")


@pytest.mark.parametrize("cell", USER_CELLS.values(), ids=USER_CELLS)
def test_valid_cells_do_not_raise(cell):
    for memory in ("full", "sqrt"):
        outputs(cell(4), memory=memory)


class OwnArguments(rnncells.LSTM):
    """A layer of a user whose constructor has other arguments."""

    def __init__(self, hidden_size, depth, **options):
        super().__init__(hidden_size, num_layers=depth, **options)


def test_constructors_of_users_keep_their_arguments():
    layer = OwnArguments(4, 2, time_major=True)
    assert (layer.features, layer.num_layers, layer.time_major) == (4, 2, True)
    assert OwnArguments(hidden_size=4, depth=3).num_layers == 3
    with pytest.raises(TypeError, match="batch_first"):
        OwnArguments(4, 2, batch_first=True)


def test_fields_of_a_users_class_are_not_checked():
    class Cell(rnncells.SimpleCell):
        is_fast: bool = 1
        head_init: Initializer = None

    assert Cell(4).is_fast == 1
    with pytest.raises(TypeError, match="`residual` of Cell must be a bool, got 1"):
        Cell(4, residual=1)
