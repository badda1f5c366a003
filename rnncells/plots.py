"""Pictures of what `rnncells.diagnostics` returns, with matplotlib.

Every function takes `ax`, the axes to draw on (default: those of a new figure of
pyplot), and returns them. Arrays can come from JAX or NumPy. Without values, or if
their shapes do not fit, the functions raise ValueError. Labels and symbols are drawn as
they are: `$` does not start a formula in them. The functions need matplotlib (in a
clone, `pip install '.[plots]'`), and raise `ModuleNotFoundError` without it.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Okabe and Ito's colors, which color-blind readers can tell apart; then line styles.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
# A legend of more entries stands beside the picture.
INSIDE = 8


def gradients_over_lag(
    norms: Mapping[str, Any], ax: Any = None, *, quantity: str = "‖∂h_T / ∂h_t‖"
) -> Any:
    """Draws norms of gradients over lag, the mean over rows, on a logarithmic axis.

    >>> import numpy as np, rnncells
    >>> fading = 0.9 ** np.arange(50)
    >>> ax = rnncells.plots.gradients_over_lag({"Elman": fading, "LSTM": fading**0.1})
    >>> ax.get_yscale()
    'log'

    Args:
      norms: for each label, an array `(*batch, lag)`, as `diagnostics.by_lag` returns
        it; NaN where a row has no such step. Norms of 0 are not drawn.
      quantity: label of the vertical axis.
    """
    arrays = _by_label("norms", {label: (x,) for label, x in norms.items()})
    ax = _axes(ax)
    for (label, values), look in zip(arrays.items(), _looks(), strict=False):
        rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
        count = (~np.isnan(rows)).sum(0)
        mean = np.nansum(rows, 0) / np.maximum(count, 1)
        mean = np.where(mean > 0, mean, np.nan)
        ax.plot(np.arange(len(mean)), mean, label=label, **look)
    ax.set_yscale("log")
    return _labelled(ax, "lag T − t (steps)", quantity, len(norms))


def gate_over_text(
    gate: Any,
    text: Sequence[str] | None = None,
    ax: Any = None,
    *,
    name: str = "gate",
    limits: tuple[float, float] | None = None,
) -> Any:
    """Draws the values of a gate at every step, with the symbols of the steps under it.

    >>> import numpy as np, rnncells
    >>> ax = rnncells.plots.gate_over_text(np.eye(5), "hello", name="forget gate f")
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['h', 'e', 'l', 'l', 'o']

    Args:
      gate: values of one row, real `(time, units)`.
      text: one symbol for each step, such as a string; None: numbers of steps. Spaces
        and newlines are shown as `␣` and `⏎`.
      name: what the values are.
      limits: values of the lightest and the darkest color; default: (0, 1), or (-m, m)
        with the largest magnitude m if values are outside of [0, 1].
    """
    gate = np.asarray(gate, np.float64)
    if gate.ndim != 2:
        raise ValueError(
            f"`gate` must be (time, units), got the shape {gate.shape}. Pass one row."
        )
    _filled("gate", gate)
    if text is not None and len(text) != len(gate):
        raise ValueError(
            f"`text` must have one symbol for each of {len(gate)} steps, got "
            f"{len(text)}."
        )
    is_gate = gate.min() >= 0 and gate.max() <= 1
    if limits is None:
        largest = 1.0 if is_gate else np.abs(gate).max()
        limits = (0.0, 1.0) if is_gate else (-largest, largest)
    ax = _axes(ax)
    colors = "Blues" if limits[0] >= 0 else "RdBu_r"
    image = ax.imshow(
        gate.T,
        aspect="auto",
        interpolation="none",  # vector formats keep one pixel for each value
        cmap=colors,
        vmin=limits[0],
        vmax=limits[1],
    )
    ax.figure.colorbar(image, ax=ax, label=name, pad=0.01)
    if text is not None:
        shown = [{" ": "␣", "\n": "⏎", "\t": "⇥"}.get(x, str(x)) for x in text]
        looks = {"fontfamily": "monospace", "parse_math": False}
        ax.set_xticks(range(len(shown)), shown, **looks)
        ax.tick_params(axis="x", length=0)
    ax.set_xlabel("step" if text is None else "input symbol")
    ax.set_ylabel("unit")
    return ax


def spectrum(eigenvalues: Any, ax: Any = None, *, label: str | None = None) -> Any:
    """Draws eigenvalues of steps in the complex plane, with the unit circle.

    Call it again with the same `ax` and other labels to compare cells.

    >>> import numpy as np, rnncells
    >>> ax = rnncells.plots.spectrum(np.array([1j, -1j, 0.5]), label="step 3")
    >>> ax.get_xlabel()
    'real part'

    Args:
      eigenvalues: complex numbers of any shape, such as `jnp.linalg.eigvals` of the
        Jacobians of some steps.
      label: of these eigenvalues, for the legend.
    """
    values = _filled("eigenvalues", eigenvalues).ravel()
    ax = _axes(ax)
    circle = "unit circle"
    if circle not in [line.get_label() for line in ax.get_lines()]:
        angles = np.linspace(0, 2 * np.pi, 181)
        ax.plot(np.cos(angles), np.sin(angles), color="gray", lw=0.8, label=circle)
        ax.set_aspect("equal")
    color = COLORS[len(ax.collections) % len(COLORS)]
    ax.scatter(values.real, values.imag, s=9, alpha=0.6, lw=0, color=color, label=label)
    entries = 0 if label is None else 1 + len(ax.collections)
    return _labelled(ax, "real part", "imaginary part", entries)


def saturation(shares: Mapping[str, Any], ax: Any = None) -> Any:
    """Draws how often each unit of some gates is saturated on the left and the right.

    `shares` has for each label what `diagnostics.saturation` returns, `(left, right)`.
    A point is a unit. On the diagonal, a unit is always saturated, as a binary gate; at
    the origin, it never is. At the upper left, it is always open; at the lower right,
    it is always closed.

    >>> from rnncells import plots
    >>> ax = plots.saturation({"forget gate f": (np.zeros(4), np.ones(4))})
    >>> ax.get_xlabel()
    'share of steps saturated on the left'

    Reference: figure 3 of Karpathy, Johnson and Li, 2016,
    https://arxiv.org/abs/1506.02078.
    """
    arrays = _by_label("shares", shares)
    ax = _axes(ax)
    ax.plot([0, 1], [1, 0], color="gray", lw=0.8)
    for number, (label, both) in enumerate(arrays.items()):
        color = COLORS[number % len(COLORS)]
        left, right = map(np.ravel, both)
        ax.scatter(left, right, s=24, alpha=0.5, lw=0, color=color, label=label)
    ax.set_xlim(-0.03, 1.03)
    ax.set_ylim(-0.03, 1.03)
    ax.set_aspect("equal")
    words = "share of steps saturated on the"
    return _labelled(ax, f"{words} left", f"{words} right", len(shares))


def drift(states: Mapping[str, Any], ax: Any = None) -> Any:
    """Draws mean and standard deviation of states at each step.

    `states` has for each label what `diagnostics.drift` returns: `(mean, std, norm)`,
    of which the norm is not drawn.

    >>> from rnncells import plots
    >>> ax = plots.drift({"c": (np.zeros(9), np.ones(9), np.ones(9))})
    >>> ax.get_xlabel()
    'step'
    """
    arrays = _by_label("states", {label: x[:2] for label, x in states.items()})
    ax = _axes(ax)
    for (label, (mean, std)), look in zip(arrays.items(), _looks(), strict=False):
        steps = np.arange(len(mean))
        ax.plot(steps, mean, label=label, **look)
        ax.fill_between(steps, mean - std, mean + std, alpha=0.2, color=look["color"])
    return _labelled(ax, "step", "mean ± standard deviation", len(states))


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "`rnncells.plots` needs matplotlib. In a clone of rnncells, install it "
            "with pip install '.[plots]'.",
            name="matplotlib",
        ) from error
    return pyplot.subplots(layout="constrained")[1]


def _looks() -> Any:
    """Yields colors and line styles without end; each pair once, then again."""
    pairs = itertools.product(STYLES, COLORS)
    return ({"ls": style, "color": color} for style, color in itertools.cycle(pairs))


def _labelled(ax: Any, x: str, y: str, entries: int) -> Any:
    """Adds labels of the axes, a grid, and a legend unless it has no entries."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(alpha=0.3)
    if entries:
        beside = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
        legend = ax.legend(fontsize="small", **beside if entries > INSIDE else {})
        for text in legend.get_texts():
            text.set_parse_math(False)
    return ax


def _by_label(name: str, arrays: Mapping[str, Sequence[Any]]) -> dict[str, np.ndarray]:
    if not arrays:
        raise ValueError(f"`{name}` must have at least one entry, got none.")
    return {label: _filled(f"{name}[{label!r}]", *x) for label, x in arrays.items()}


def _filled(name: str, *arrays: Any) -> np.ndarray:
    """Returns arrays of equal shapes as one, checked; several are stacked."""
    checked = [np.asarray(array) for array in arrays]
    several = len(checked) > 1
    shapes = " and ".join(f"{x.shape}" for x in checked)
    if any(not x.ndim or not x.size or x.shape != checked[0].shape for x in checked):
        raise ValueError(
            f"`{name}` must be {'arrays of equal shapes' if several else 'an array'} "
            f"with at least one value, got the shape{'s' * several} {shapes}."
        )
    return np.stack(checked) if several else checked[0]
