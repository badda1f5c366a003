"""Tables 10 and 11 of Hochreiter and Schmidhuber (1997): the conditions of each row.

They are made from the files in `configs`, which `as-written` trains. The numbers of
weights are the published ones; kept results must have them.
"""

from collections.abc import Callable

from experiments.paper1997.tasks import TASKS
from experiments.reports.tables import markdown
from experiments.settings.config import Experiment, Model, Stopping
from experiments.settings.reading import config_path, paper_names, read_config
from experiments.settings.tasks import (
    AnyTask,
    EmbeddedReber,
    LongLags,
    MarkedPairs,
    TemporalOrder,
    VeryLongLags,
)

NETWORK_HEAD = (
    *("row", "p", "lag", "b", "s", "in", "out", "w", "c"),
    *("ogb", "igb", "bias", "h", "g", "alpha"),
)
TRAINING_HEAD = (
    *("row", "sequences", "initial weights", "test set", "stopping criterion"),
    *("within", "right"),
)
# Symbols of the shortest string of the embedded Reber grammar, such as BTBTXSETE. The
# paper has this number for the lag too.
SHORTEST_STRING = 9
SQUASHING = {"logistic": "[0, 1]", "identity": "id", "1": "[-1, 1]", "2": "[-2, 2]"}
SQUASHING |= {"4": "[-4, 4]"}


def tables() -> dict[str, str]:
    """Returns Markdown: `table 10`, the networks, and `table 11`, their training."""
    return {
        "table 10": markdown(NETWORK_HEAD, _grouped(_network)),
        "table 11": markdown(TRAINING_HEAD, _grouped(_training)),
    }


def _grouped(conditions: Callable[[Experiment], tuple[str, ...]]) -> list[tuple]:
    """Returns the names and the conditions of rows; equal conditions stand once."""
    names = {}
    for name in paper_names():
        found = conditions(read_config(config_path(name)))
        names.setdefault(found, []).append(name)
    return [(", ".join(of_group), *found) for found, of_group in names.items()]


def _network(row: Experiment) -> tuple[str, ...]:
    model, task = row.model, TASKS[row.task.name]
    shortest, lag = _steps(row.task)
    return (
        *(str(shortest), str(lag)),
        *(str(model.blocks), str(model.block_size)),
        *(str(task.inputs(row.task)), str(task.outputs(row.task))),
        *(str(row.paper.weights), "F" if model.recurrent else "B"),
        _initial(model, "out", model.output_gate_bias) if model.output_gates else "-",
        _initial(model, "in", model.input_gate_bias),
        _biases(model),
        *(SQUASHING[model.h], SQUASHING[model.g], f"{row.learning.rate:g}"),
    )


def _steps(task: AnyTask) -> tuple[int, int]:
    """Returns the shortest sequence, and the fewest steps to the target."""
    match task:
        case EmbeddedReber():
            return SHORTEST_STRING, SHORTEST_STRING
        case LongLags() | VeryLongLags():
            return task.lag, task.lag
        case MarkedPairs():
            return task.length, task.length // 2
        case TemporalOrder():
            shortest, _ = task.lengths
            _, last_symbol = task.positions[-1]
            return shortest, shortest - last_symbol
    return task.length, task.length


def _initial(model: Model, unit: str, bias: tuple[float, ...] | None) -> str:
    if unit not in model.biases:
        return "none"
    return "r" if bias is None else ", ".join(f"{x:g}" for x in bias)


def _biases(model: Model) -> str:
    if not model.biases:
        return "none"
    return "all" if model.output_bias else "b1" if "cell" in model.biases else "ga"


def _training(row: Experiment) -> tuple[str, ...]:
    limit, right = row.model.weight_range, f"error < {row.stopping.tolerance:g}"
    if isinstance(row.task, EmbeddedReber):
        right = "legal symbols most active"
    return (
        *(_origin(row.task), f"[-{limit:g}, {limit:g}]"),
        *(f"{row.test_sequences:,}", _criterion(row.stopping)),
        *(f"{row.learning.max_sequences:,}", right),
    )


def _origin(task: AnyTask) -> str:
    """Returns how training sequences are selected: t1, t2 or t3 in the paper."""
    match task:
        case EmbeddedReber():
            return "from a training set"
        case LongLags(is_random=False):
            return "one of two"
        case LongLags() | VeryLongLags():
            return "from two classes"
    return "generated"


def _criterion(stopping: Stopping) -> str:
    """Returns the stopping points in order."""
    errors = stopping.mean_error or (None,) * len(stopping.wrong)
    points = [
        f"at most {wrong} wrong" + ("" if error is None else f", error < {error:g}")
        for wrong, error in zip(stopping.wrong, errors, strict=True)
    ]
    last = "" if stopping.on == "test" else "the last "
    of = f"{last}{stopping.window:,} {stopping.on} sequences"
    return f"of {of}: " + "; ".join(points)
