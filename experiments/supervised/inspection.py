"""Shows what the cells of a trained network compute, and how gradients flow in it."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.reports.svg import save
from experiments.reports.tables import markdown
from experiments.runs.folder import DATA, INSPECT, read_json, writing
from experiments.settings.options import Inspect
from experiments.settings.rules import ConfigError
from experiments.settings.supervised import Supervised
from experiments.supervised.inspection_figures import draw
from experiments.supervised.task import Examples, Task
from experiments.supervised.tasks import TASKS
from experiments.supervised.trained import check_params, read_params, read_run
from rnncells import diagnostics

# Layers with this name run from the last step to the first.
BACKWARD = "backward_rnn"


class Layer(NamedTuple):
    """What a recurrent layer of a trained network does with some sequences, as NumPy.

    Attributes:
      values: arrays by name, `(count, time, ...)`, see `rnncells.diagnostics.record`.
      states: leaves of the carry after each step, `(count, time, ...)`.
      mask: true at valid steps, `(count, time)`.
      gates: names of the values that are in [0, 1].
      saturation: for each gate, `(left, right)` of each unit.
      drift: mean, standard deviation and norm of each leaf of the carry, `(time,)`.
      loss_gradients: norms of dL/dh_t by lag, `(count, time)`.
      carry_gradients: Frobenius norms of dh_T/dh_t by lag, divided by that of the
        identity, `(count, steps)`, over the first steps.
      exponents: Lyapunov exponents over these steps, `(count, size)`.
      eigenvalues: of the last of these steps, `(count, size)`.
    """

    values: dict[str, np.ndarray]
    states: list[np.ndarray]
    mask: np.ndarray
    gates: list[str]
    saturation: dict[str, diagnostics.Saturation]
    drift: list[diagnostics.Drift]
    loss_gradients: np.ndarray
    carry_gradients: np.ndarray
    exponents: np.ndarray
    eigenvalues: np.ndarray


def inspect(folder: Path, options: Inspect) -> None:
    """Prints a table of a trained network, and writes pictures to RUN/inspect.

    Args:
      folder: folder of a finished run.
      options: the options of the command line.

    Raises:
      ConfigError: the folder has no finished run on sequences of a data set, a file is
        damaged, or the data have changed.
    """
    task, params = load(folder, options.network)
    examples = task.examples(task.data, options.sequences, options.steps)
    layers = layers_of(task, params, examples, options.steps)
    print(table(layers))
    with writing(folder / INSPECT):
        paths = save(draw(layers, examples), folder / INSPECT)
    for path in paths:
        print(f"wrote {path}")


def load(folder: Path, network: int = 0) -> tuple[Task, Any]:
    """Returns the task of a finished run, and the parameters of one network.

    Args:
      folder: folder of the run.
      network: number of the network, in [0, seeds).

    Raises:
      ConfigError: see `inspect`.
    """
    experiment = read_run(folder, "inspect")
    if not isinstance(experiment, Supervised):
        raise ConfigError(
            f"`inspect` needs a run on a data set, got a run of 1997 in `{folder}`."
        )
    task = TASKS[experiment.task.name](experiment)
    if type(task).examples is Task.examples:
        raise ConfigError(f"`inspect` does not support `{experiment.task.name}`.")
    _check_data(folder, task)
    params = read_params(folder, network, experiment.seeds)
    check_params(folder, task.model, task.sample, params)
    return task, params


def _check_data(folder: Path, task: Task) -> None:
    """Checks that data from files are those that the run has seen."""
    now, path = task.identity.get("sha256"), folder / DATA
    if now is None or not path.is_file():
        return
    found = read_json(path)
    if not isinstance(found, dict) or found.get("sha256") != now:
        raise ConfigError(
            f"{task.origin} has changed since the run in `{folder}`, or {path} is "
            "damaged."
        )


def layers_of(
    task: Task, params: Any, examples: Examples, steps: int
) -> dict[str, Layer]:
    """Returns what each recurrent layer does with some sequences, by its path.

    Args:
      task: the task.
      params: parameters of one network.
      examples: the sequences.
      steps: number of steps whose Jacobians are computed.
    """
    model, variables = task.model, {"params": params}
    lengths = examples.lengths

    def whole(variables, inputs, lengths):
        given = variables, inputs
        loss = partial(_loss_of, examples)
        values = diagnostics.record(model, *given, lengths=lengths)
        slopes = diagnostics.cotangents(loss, model, *given, lengths=lengths)
        return values, {path: diagnostics.norms(s.carry) for path, s in slopes.items()}

    values, slopes = jax.jit(whole)(variables, examples.inputs, lengths)
    first = examples.inputs[:, :steps]
    cut = None if lengths is None else np.minimum(lengths, steps)
    start = jax.jit(partial(diagnostics.record, model, jacobians=True))(
        variables, first, lengths=cut
    )
    found = {}
    for path, recorded in values.items():
        name = path.removeprefix("stack/") or "layer"
        found[name] = _layer(recorded, slopes[path], start[path], path)
    return found


def _loss_of(examples: Examples, outputs: tuple[Any, jax.Array]) -> jax.Array:
    return examples.loss(outputs[1])


def _layer(
    whole: diagnostics.Recorded,
    slopes: jax.Array,
    first: diagnostics.Recorded,
    path: str,
) -> Layer:
    """Returns what a layer does, from its values in whole and in first steps."""
    direction = {"reverse": path.rpartition("/")[2].startswith(BACKWARD)}
    values = {name: np.asarray(array) for name, array in whole.values.items()}
    valid = np.asarray(whole.mask)
    gates = [
        name
        for name, array in values.items()
        if array.dtype.kind == "f"
        and array[valid].min(initial=0) >= 0
        and array[valid].max(initial=0) <= 1
    ]
    states = jax.tree.leaves(whole.carry)
    jacobians = first.jacobians
    norms = diagnostics.carry_gradients(jacobians, norm="frobenius", **direction)
    norms = norms / np.sqrt(jacobians.shape[-1])
    last = _last_valid(np.asarray(first.mask), **direction)
    at_last = jacobians[np.arange(len(last)), last]
    return Layer(
        values,
        [np.asarray(state) for state in states],
        valid,
        gates,
        {name: diagnostics.saturation(values[name], whole.mask) for name in gates},
        [diagnostics.drift(state, whole.mask) for state in states],
        np.asarray(diagnostics.by_lag(slopes, whole.mask, **direction)),
        np.asarray(diagnostics.by_lag(norms, first.mask, **direction)),
        np.asarray(diagnostics.lyapunov_exponents(jacobians, first.mask, **direction)),
        # NumPy, because JAX does not compute eigenvalues on every device.
        np.linalg.eigvals(np.asarray(at_last)),
    )


def _last_valid(mask: np.ndarray, reverse: bool) -> np.ndarray:
    """Returns the last step that ran in each row, `(count,)`."""
    steps = np.arange(mask.shape[1])
    if reverse:
        return np.where(mask, steps, len(steps) - 1).min(1)
    return np.where(mask, steps, 0).max(1)


def table(layers: dict[str, Layer]) -> str:
    """Returns two Markdown tables: gates, and gradients."""
    gates = [
        (
            name,
            gate,
            f"{layer.values[gate][layer.mask].mean():.3f}",
            *(f"{100 * np.mean(share):.1f} %" for share in layer.saturation[gate]),
        )
        for name, layer in layers.items()
        for gate in layer.gates
    ]
    slopes = []
    for name, layer in layers.items():
        norms = layer.carry_gradients
        longest = np.sum(~np.isnan(norms), -1).max() - 1
        lags = sorted({min(10, longest), longest})
        slopes.append(
            (
                name,
                str(layer.exponents.shape[-1]),
                f"{np.nanmean(layer.exponents[:, 0]):.3f}",
                f"{np.abs(layer.eigenvalues).max(-1).mean():.3f}",
                ", ".join(
                    f"{np.nanmean(norms[:, lag]):.3g} (lag {lag})" for lag in lags
                ),
            )
        )
    head = "layer", "gate", "mean", "below 0.1", "above 0.9"
    tables = [markdown(head, gates)] if gates else []
    head = ("layer", "carry size", "first Lyapunov exponent (nats/step)")
    head += ("spectral radius of a step", "‖∂h_T/∂h_t‖ / ‖I‖")
    return "\n\n".join([*tables, markdown(head, slopes)])
