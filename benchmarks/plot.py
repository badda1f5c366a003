"""Figures. Only this file of the benchmarks imports matplotlib."""

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import OURS, TITLES


def save_picture(results: dict[str, Any], path: Path) -> None:
    """Draws every library's time relative to ours, with a panel for each mode.

    Args:
      results: the contents of `results.json`.
      path: path of the figure, with the suffix .svg or .png; its folder is created.
    """
    import matplotlib
    from matplotlib.figure import Figure

    cases = results["cases"]
    modes = list(dict.fromkeys(case["mode"] for case in cases))
    names = list(dict.fromkeys(name for case in cases for name in case["contenders"]))
    names = [name for name in names if name not in (OURS, "floor")]
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same results give the same file: no random names, no date.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with matplotlib.rc_context({"svg.hashsalt": "benchmarks"}):
        figure = Figure(figsize=(11, 3.6 * len(modes)), layout="constrained")
        panels = figure.subplots(len(modes), squeeze=False)[:, 0]
        for axes, mode in zip(panels, modes, strict=True):
            draw(axes, [case for case in cases if case["mode"] == mode], names)
            axes.set_title(TITLES[mode])
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        figure.savefig(path, dpi=150, metadata=metadata)


def draw(axes: Any, cases: list[dict[str, Any]], names: list[str]) -> None:
    """Draws bars that start at 1, up where ours is faster, and the floor.

    Args:
      axes: of matplotlib.
      cases: measurements of one mode.
      names: peers, each with its place and colour in all panels.
    """
    width = 0.8 / max(len(names), 1)
    for index, name in enumerate(names):
        found, taken = _ratios(cases, name)
        places = [i - 0.4 + (index + 0.5) * width for i in found]
        medians = [ratio["median"] for ratio in taken]
        heights = [median - 1 for median in medians]
        axes.bar(places, heights, width, bottom=1, label=name, color=f"C{index}")
        below = [ratio["median"] - ratio["low"] for ratio in taken]
        above = [ratio["high"] - ratio["median"] for ratio in taken]
        style = {"fmt": "none", "ecolor": "black", "elinewidth": 0.8}
        axes.errorbar(places, medians, [below, above], **style)
    found, taken = _ratios(cases, "floor")
    axes.hlines(
        [ratio["median"] for ratio in taken],
        [i - 0.45 for i in found],
        [i + 0.45 for i in found],
        colors="black",
        linestyles="dotted",
        label="floor",
    )
    axes.axhline(1, color="black", linewidth=1)
    axes.set_yscale("log", base=2)
    low, high = axes.get_ylim()
    # At least two labels, also where all are nearly the same.
    axes.set_ylim(min(low, 0.5), max(high, 2))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("time / ours")
    labels = [f"{case['cell']}\n{case['size']['name']}" for case in cases]
    axes.set_xticks(range(len(cases)), labels, fontsize="small")


def _ratios(
    cases: list[dict[str, Any]], name: str
) -> tuple[list[int], list[dict[str, float]]]:
    """Returns the places of the cases that a contender ran, and its ratios there."""
    found = [i for i, case in enumerate(cases) if name in case["contenders"]]
    return found, [cases[i]["contenders"][name]["ratio"] for i in found]


class Point(NamedTuple):
    """What was measured at one length.

    Attributes:
      time: number of steps.
      seconds: time of all of them.
      memory: temporaries of all of them, in bytes.
    """

    time: int
    seconds: float
    memory: float


def save_steps(found: dict[int, dict[str, list[Point]]], path: Path) -> None:
    """Draws time and memory of a step against the number of steps.

    Args:
      found: points, by batch and by the name of their line.
      path: path of the figure, with the suffix .svg.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "benchmarks"}):
        figure = Figure(figsize=(10, 6), layout="constrained")
        panels = figure.subplots(
            2, len(found), sharex=True, sharey="row", squeeze=False
        )
        for (above, below), (batch, lines) in zip(panels.T, found.items(), strict=True):
            for label, points in lines.items():
                steps = [point.time for point in points]
                seconds = [1e6 * point.seconds / point.time for point in points]
                memory = [point.memory / point.time / 1024 for point in points]
                above.loglog(steps, seconds, "o-", label=label)
                below.loglog(steps, memory, "o-", label=label)
            above.set_title(f"batch of {batch}")
            below.set_xlabel("steps")
        panels[0, 0].set_ylabel("µs per step")
        panels[1, 0].set_ylabel("KiB of temporaries per step")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        figure.savefig(path, metadata={"Date": None})
