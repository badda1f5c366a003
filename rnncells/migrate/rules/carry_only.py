"""RC13: cells that are made for their carry and take another cell's name."""

import ast
from collections.abc import Iterator

from rnncells.migrate.code.carry_calls import is_carry_call
from rnncells.migrate.code.names import last_name
from rnncells.migrate.code.program import Program
from rnncells.migrate.rules.finding import Finding


def cells(program: Program) -> Iterator[Finding]:
    """RC13: a cell for its carry alone, before another cell of the same class name.

    It is made in a compact method, or in a function that such a method calls.
    """
    found = {}
    named = {call: _automatic_name(program, call) for call in program.calls}
    only = [call for call in named if named[call] and _is_carry_only(program, call)]
    methods = [
        node
        for node in (program.source.nodes if only else ())
        if isinstance(node, ast.FunctionDef) and program.is_compact(node)
    ]
    for method in methods:
        run = functions_run(program, method)
        made = [call for call in named if program.function(call) in run]
        # Where the method itself makes a cell, or calls what does.
        places = {call: run[program.function(call)] or call for call in made}
        for call in filter(made.__contains__, only):
            if any(
                named[other] == named[call]
                and other not in only
                and _comes_next(program, places[call], places[other])
                for other in made
            ):
                found[call] = (
                    "this cell only creates a carry, but takes the parameter name "
                    f"`{named[call]}_0` from the next cell: write "
                    f"`{last_name(call.func)}(..., parent=None)`, and rename the "
                    "parameters in old checkpoints"
                )
    yield from (Finding("RC13", call, why=why) for call, why in found.items())


def functions_run(
    program: Program, method: ast.FunctionDef
) -> dict[ast.AST, ast.Call | None]:
    """Returns a method and the functions of the file it calls, each with that call.

    The call is the one in the method itself; None for the method.
    """
    run: dict[ast.AST, ast.Call | None] = {method: None}
    left = [method]
    while left:
        function = left.pop()
        for call in program.calls:
            if program.function(call) is function:
                called = _function_called(program, call)
                if called is not None and called not in run:
                    run[called] = run[function] or call
                    left.append(called)
    return run


def _function_called(program: Program, call: ast.Call) -> ast.FunctionDef | None:
    """Returns the function of the file that a call runs in the module around it."""
    names = program.names
    if isinstance(call.func, ast.Attribute):
        receiver = call.func.value
        is_own = names.is_self(receiver) or names.class_named(receiver) is not None
        classes = names.classes(call.func) if is_own else []
        method = call.func.attr
        found = (names.scopes[around].names.get(method) for around in classes)
        found = next(filter(None, found), [])
    else:
        found = [names.only(call.func)]
    node = found[0].node if len(found) == 1 and found[0] is not None else None
    is_run_here = isinstance(node, ast.FunctionDef) and not program.is_compact(node)
    return node if is_run_here else None


def _automatic_name(program: Program, call: ast.Call) -> str:
    """Returns the name that Flax gives a cell, without its number; or ""."""
    cell = program.cell_class(call.func)
    if cell is None or any(k.arg in ("parent", "name") for k in call.keywords):
        return ""
    lifts = {"checkpoint": "Checkpoint", "remat": "Checkpoint"}
    prefix = (lifts.get(lift, lift.capitalize()) for lift in reversed(cell.lifts))
    derived = program.names.class_named(call.func)
    return "".join(prefix) + (cell.name if derived is None else derived.name)


def _comes_next(program: Program, at: ast.AST, other: ast.AST) -> bool:
    """Returns whether one place may run before another: above it, or in a loop."""
    return at is not other and (
        program.source.start(at) <= program.source.start(other)
        or program.source.around(other, ast.For, ast.While) is not None
    )


def _is_carry_only(program: Program, call: ast.Call) -> bool:
    """Returns whether a cell is only used for its `initialize_carry`."""
    uses = [call]
    if isinstance(program.source.parents[call], ast.Assign | ast.AnnAssign):
        target = program.target(call)
        uses = [] if target is None else program.names.reads(target)
    return bool(uses) and all(_makes_a_carry(program, use) for use in uses)


def _makes_a_carry(program: Program, use: ast.expr) -> bool:
    parent = program.source.parents[use]
    if not isinstance(parent, ast.Attribute):
        return False
    call = program.source.parents[parent]
    return is_carry_call(call) and call.func is parent
