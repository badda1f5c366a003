"""The table of loops over time, and the choice of the one that runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from rnncells.loops.fast import FastLoop
from rnncells.loops.parallel import CausalConvLoop, LinearLoop
from rnncells.loops.plain import PlainLoop
from rnncells.loops.request import DEFAULTS, Loop, Obstacle, StepRequest
from rnncells.loops.rows import ForwardLoop, NewtonLoop
from rnncells.recurrence.newton import Newton

FORWARD, NEWTON = ForwardLoop(), NewtonLoop()
LINEAR, CAUSAL_CONV = LinearLoop(), CausalConvLoop()
FAST, PLAIN = FastLoop(), PlainLoop()
# The first loop that takes the options and can run the step is chosen.
LOOPS: list[Loop] = [FORWARD, NEWTON, LINEAR, CAUSAL_CONV, FAST, PLAIN]


def _kinds(options: Mapping[str, Any]) -> dict[str, str]:
    """Returns the kinds of the values of all options, by which loops differ."""
    implementation = options["implementation"]
    is_newton = isinstance(implementation, Newton)
    return {
        "gradient": options["gradient"].loop_kind,
        "implementation": "newton" if is_newton else implementation,
        "memory": "full" if options["memory"] == "full" else "less",
        "projection": "auto" if options["projection"] == "auto" else "chosen",
    }


_DEFAULT_KINDS = _kinds(DEFAULTS)


def check_options(layer: nn.Module) -> None:
    """Raises ValueError if no loop takes the options of a layer together."""
    options = {name: getattr(layer, name) for name in DEFAULTS}
    if _loops_taking(options):
        return
    # The options up to the first that no loop takes beside those before it.
    while not _loops_taking(dict([*options.items()][:-1])):
        options.popitem()
    # Options without which a loop takes the others.
    exclusive = {
        name: value
        for name, value in _set_options(options).items()
        if _loops_taking(options | {name: DEFAULTS[name]})
    }
    raise ValueError(
        f"{shown(exclusive)} of {type(layer).__name__} exclude each other: no loop "
        "over time takes them together. Leave one of them at its default, such as "
        f"{_default([*options][-1])}."
    )


def _loops_taking(
    options: Mapping[str, Any], loops: Sequence[Loop] = LOOPS
) -> list[Loop]:
    """Returns the loops that take options; those that are not here are defaults."""
    kinds = _kinds({**DEFAULTS, **options})
    return [
        loop
        for loop in loops
        if all(
            kind in loop.options.get(name, (_DEFAULT_KINDS[name],))
            for name, kind in kinds.items()
        )
    ]


def run(request: StepRequest, loops: Sequence[Loop] = LOOPS) -> tuple[tuple, tuple]:
    """Runs a request; returns what `Loop.run` returns."""
    return choose(request, loops).run(request)


def choose(request: StepRequest, loops: Sequence[Loop]) -> Loop:
    """Returns the first loop that takes the options and can run the step.

    The plain loop creates variables, and runs no steps. Raises ValueError if there is
    no such loop.
    """
    options = {name: request.option(name) for name in DEFAULTS}
    candidates = _loops_taking(options, loops)
    of_cell = [loop for loop in candidates if loop.is_for(request.cell)]
    if of_cell and (request.rnn.is_initializing() or request.is_empty):
        return PLAIN
    reasons, advice = [], "For this cell, use"
    for loop in of_cell:
        try:
            loop.check(request)
        except Obstacle as obstacle:
            reasons.append((loop.name, str(obstacle)))
            if obstacle.kind == "draws":
                advice = "Pass deterministic=True if the cell has dropout, or use"
        else:
            return loop
    # A loop for other cells is no advice if there is one for this cell.
    for loop in [] if reasons else candidates:
        names = " or ".join(base.__name__ for base in loop.cells or ())
        text = f"needs a cell derived from {names}, got {request.cell_name}."
        reasons.append((loop.name, text))
    needs = " Or it ".join(f"needs the {name}, which {text}" for name, text in reasons)
    set_options = _set_options(options)
    defaults = " and ".join(map(_default, set_options))
    raise ValueError(f"{shown(set_options)} of RNN {needs} {advice} {defaults}.")


def _set_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that differ from their defaults."""
    return {name: v for name, v in options.items() if v != DEFAULTS[name]}


def shown(options: Mapping[str, Any]) -> str:
    """Returns options as in a call, for errors."""

    texts = []
    for name, value in options.items():
        hook = " with a `carry_hook`" if getattr(value, "carry_hook", None) else ""
        texts.append(f"{name}={value!r}{hook}")
    return " and ".join(texts)


def _default(name: str) -> str:
    return f"{name}={DEFAULTS[name]!r}"
