"""What the pictures of `rnncells.plots` show: data, labels and scales."""

import builtins
import io

import numpy as np
import pytest
from levels import by_level
from matplotlib.figure import Figure

from rnncells import plots

pytestmark = pytest.mark.default


@pytest.fixture
def ax():
    return Figure().add_subplot()


def entries(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_gradients_over_lag_are_means_over_rows_on_a_logarithmic_axis(ax):
    rows = np.array([[1.0, 0.5, 0.25], [3.0, 0.1, np.nan]])
    assert (
        plots.gradients_over_lag({"LSTM": rows, "GRU": np.array([1, 0.1, 0])}, ax) is ax
    )
    lstm, gru = ax.get_lines()
    np.testing.assert_array_equal(lstm.get_xdata(), [0, 1, 2])
    np.testing.assert_allclose(lstm.get_ydata(), [2.0, 0.3, 0.25])
    # A logarithmic axis has no 0.
    np.testing.assert_array_equal(gru.get_ydata(), [1, 0.1, np.nan])
    assert ax.get_yscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("lag T − t (steps)", "‖∂h_T / ∂h_t‖")
    assert entries(ax) == ["LSTM", "GRU"]


def test_spectrum_has_one_unit_circle(ax):
    first, second = np.array([[0.5j, -0.5j], [1, 2]]), np.array([-1])
    plots.spectrum(first, ax, label="first")
    plots.spectrum(second, ax, label="second")
    [circle] = ax.get_lines()
    np.testing.assert_allclose(np.hypot(*circle.get_xydata().T), 1)
    points = [dots.get_offsets() for dots in ax.collections]
    np.testing.assert_array_equal(points[0], [[0, 0.5], [0, -0.5], [1, 0], [2, 0]])
    np.testing.assert_array_equal(points[1], [[-1, 0]])
    assert ax.get_aspect() == 1
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("real part", "imaginary part")
    assert entries(ax) == ["unit circle", "first", "second"]


def test_saturation_has_a_point_for_each_unit(ax):
    shares = {"f": (np.array([0.1, 0.2]), np.array([0.7, 0.8])), "o": ([0], [1])}
    plots.saturation(shares, ax)
    f, o = ax.collections
    np.testing.assert_array_equal(f.get_offsets(), [[0.1, 0.7], [0.2, 0.8]])
    np.testing.assert_array_equal(o.get_offsets(), [[0, 1]])
    [line] = ax.get_lines()  # left + right = 1
    np.testing.assert_array_equal(line.get_xydata().sum(1), 1)
    assert "left" in ax.get_xlabel() and "right" in ax.get_ylabel()
    assert entries(ax) == ["f", "o"]


@pytest.mark.parametrize("word", by_level(["$x$", "$\\foo$", "a $", "$1 or $2"], 1))
def test_dollars_do_not_start_formulas(word, ax):
    plots.gate_over_text(np.eye(2), [word, "$"], ax)
    plots.spectrum(np.ones(2), ax, label=word)
    plots.saturation({word: (np.ones(2), np.ones(2))}, ax.figure.add_subplot())
    plots.drift({word: np.ones((3, 2))}, ax.figure.add_subplot())
    norms = dict.fromkeys([word, *"abcdefgh"], np.ones(2))
    plots.gradients_over_lag(norms, ax.figure.add_subplot())
    ax.figure.savefig(io.BytesIO(), dpi=20)
    assert ax.get_xticklabels()[0].get_text() == word
    assert [entries(one)[0] for one in ax.figure.axes[2:]] == 3 * [word]


def test_missing_matplotlib_is_named(monkeypatch):
    def fail(name, *args, **kwargs):
        if name == "matplotlib":
            raise ModuleNotFoundError(name)
        return load(name, *args, **kwargs)

    load = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[plots\]'"):
        plots.spectrum(np.ones(1))
