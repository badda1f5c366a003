"""Reports of the measurements, for the terminal and as tables of a page."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.sizes import MODES, describe

OURS = "rnncells"
START, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"
TITLES = {
    "forward": "Outputs of a sequence",
    "gradient": "Gradient by parameters and inputs",
}


def format_case(case: dict[str, Any]) -> str:
    """Returns the text of one measurement for the terminal.

    Args:
      case: a result of `measure_case`.
    """
    title = f"{case['cell']} {case['size']['name']} ({describe(case['size'])})"
    lines = [
        f"{title}, {case['mode']}",
        f"  {'':15}{'time':>8}  {'/ ours (quartiles)':24}{'compile':>8}"
        f"{'temporary':>11}",
    ]
    for name, taken in case["contenders"].items():
        lines.append(
            f"  {name:15}{_seconds(taken['seconds']['median']):>8}  "
            f"{_ratio(name, taken['ratio']):24}{_seconds(taken['compile_seconds']):>8}"
            f"{_bytes(taken['temporary_bytes']):>11}"
        )
    lines += [f"  {name:15}{reason}" for name, reason in case["missing"].items()]
    return "\n".join(lines)


def markdown(results: dict[str, Any], picture: str) -> str:
    """Returns the content of the page: a description, the figure and the tables.

    Args:
      results: the contents of `results.json`.
      picture: path of the figure, relative to the page.
    """
    parts = [_facts(results), f"![Times relative to ours]({picture})"]
    for mode in MODES:
        cases = [case for case in results["cases"] if case["mode"] == mode]
        if cases:
            parts += [f"{TITLES[mode]}:", _table(cases, _time)]
            if mode == "gradient":
                parts += ["Compile time of the gradient:", _table(cases, _relative)]
                memory = partial(_relative, field="temporary_bytes")
                parts += ["Temporary memory of the gradient:", _table(cases, memory)]
    return "\n\n".join(parts)


def replace_between(text: str, inner: str) -> str:
    """Replaces the text between the markers.

    Args:
      text: a text that contains each marker once.
      inner: the new text between them.

    Raises:
      ValueError: the text does not contain each marker once.
    """
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not end or START in rest or END in before + after:
        raise ValueError(f"expected one `{START}` and then one `{END}`.")
    return f"{before}{start}\n\n{inner}\n\n{end}{after}"


def write_table(results: dict[str, Any], page: Path, picture: str) -> None:
    """Writes the tables into a page, between the markers.

    Args:
      results: the contents of `results.json`.
      page: the file.
      picture: path of the figure, relative to the page.

    Raises:
      ValueError: the file does not contain each marker once.
    """
    inner = markdown(results, picture)
    page.write_text(replace_between(page.read_text(), inner))


def _facts(results: dict[str, Any]) -> str:
    environment = results["environment"]
    versions = ", ".join(f"{k} {v}" for k, v in environment["versions"].items())
    cpu, device = environment["cpu"], environment["device"]
    where = f"{cpu['count']} cores of {cpu['model']}"
    torch = "PyTorch uses one thread or all, whichever is faster."
    if device.lower() != "cpu":
        where += f" and {device}"
        torch = "PyTorch uses cuDNN."
    counts = [case["rounds"] for case in results["cases"]]
    few, many = min(counts), max(counts)
    rounds = f"{many}" if few == many else f"{few} to {many}"
    return (
        f"The column `{OURS}` has our time. Each other entry is a library's time "
        f"divided by ours: the median and quartiles of {rounds} rounds. More than 1 "
        "means that ours is faster. In each round, all libraries take turns in one "
        "process. `floor` is the time of the matrix products alone in XLA, as a share "
        "of our time. `flax-cell` is Flax's cell in our RNN. CompactLSTM, MinGRU and "
        "IndRNN are cells as users write them, in our RNN and in Flax's; `our-cell` is "
        f"LSTMCell in our RNN. {torch} Keras takes inputs with the batch first, the "
        "others with time first. Haiku's GRU applies its reset gate before the "
        "product. Compile times and memory are also divided by ours. Sizes are "
        f"batch×time, features in→out. Measured on {where} with Python "
        f"{environment['python']}, {versions}."
    )


def _table(cases: list[dict[str, Any]], entry: Callable) -> str:
    """Returns a table with a row for each case and a column for each library.

    `entry(case, name)` is the text of a cell, or None. Columns without text are left
    out.
    """
    found = dict.fromkeys(name for case in cases for name in case["contenders"])
    names = [name for name in found if name != "floor"]
    names += ["floor"] if "floor" in found else []
    entries = {name: [entry(case, name) for case in cases] for name in names}
    entries = {name: column for name, column in entries.items() if any(column)}
    lines = [_row(["cell", "size", "", *entries]), _row(["---"] * (3 + len(entries)))]
    for i, case in enumerate(cases):
        size = case["size"]
        cells = [column[i] or "-" for column in entries.values()]
        lines.append(_row([case["cell"], size["name"], describe(size), *cells]))
    return "\n".join(lines)


def _time(case: dict[str, Any], name: str) -> str | None:
    """Returns a library's time, divided by ours; our time in seconds."""
    taken = case["contenders"].get(name)
    if name == OURS:
        return _seconds(taken["seconds"]["median"])
    return None if taken is None else _ratio(name, taken["ratio"])


def _relative(
    case: dict[str, Any], name: str, field: str = "compile_seconds"
) -> str | None:
    """Returns a library's compile time or memory, divided by ours; not of ours."""
    if name in (OURS, "floor"):
        return None
    ours, theirs = (case["contenders"].get(n, {}).get(field) for n in (OURS, name))
    return f"{theirs / ours:.2f}" if ours and theirs else None


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ratio(name: str, ratio: dict[str, float]) -> str:
    """Returns a ratio and its quartiles; in percent for the floor."""
    low, median, high = ratio["low"], ratio["median"], ratio["high"]
    if name == OURS:
        return "1"
    if name == "floor":
        return f"{median:.0%} ({100 * low:.0f}–{100 * high:.0f})"
    return f"{median:.2f} ({low:.2f}–{high:.2f})"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, factor in (("s", 1), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _bytes(count: int | None) -> str:
    if count is None:
        return "-"
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"
