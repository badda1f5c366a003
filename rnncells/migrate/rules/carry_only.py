"""RC13: cells that are made for their carry and take another cell's name."""

import ast
from collections.abc import Iterator
from functools import lru_cache

from rnncells.migrate.code.names import last_name
from rnncells.migrate.code.program import Program
from rnncells.migrate.rules.finding import Finding


def cells(program: Program) -> Iterator[Finding]:
    """RC13: a cell for its carry alone, before another cell of the same class name.

    It is made in a compact method, or in a function that such a method runs.
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
) -> dict[ast.AST, ast.expr | None]:
    """Returns a method and the functions of the file it runs, each with its place.

    The place is the call, or the use of a property, in the method itself; None for the
    method. A function that is passed to a call (`jax.vmap(f)`) is taken to run there.
    """
    run: dict[ast.AST, ast.expr | None] = {method: None}
    left = [method]
    while left:
        function = left.pop()
        for place in _places(program).get(function, ()):
            for started in _functions_at(program, place):
                if started not in run:
                    run[started] = run[function] or place
                    left.append(started)
    return run


@lru_cache(maxsize=1)
def _places(program: Program) -> dict[ast.AST, list[ast.expr]]:
    """Returns the calls and attributes in each function, in the order of the file."""
    found: dict[ast.AST, list[ast.expr]] = {}
    attributes = (n for n in program.source.nodes if isinstance(n, ast.Attribute))
    for node in (*program.calls, *attributes):
        found.setdefault(program.function(node), []).append(node)
    return found


def _functions_at(program: Program, place: ast.expr) -> Iterator[ast.AST]:
    """Yields the functions of the file that an expression runs in the module."""
    given = [place]
    if isinstance(place, ast.Call):
        given = [place.func, *place.args, *(k.value for k in place.keywords)]
    for node in given:
        found = _function_of(program, node)
        is_property = isinstance(found, ast.FunctionDef) and any(
            last_name(one) == "property" for one in found.decorator_list
        )
        # An attribute alone runs nothing else.
        if found is not None and (node is not place or is_property):
            yield found


def _function_of(program: Program, node: ast.expr) -> ast.AST | None:
    """Returns the function of the file that an expression is, or None.

    Another compact method has cells of its own.
    """
    names, value = program.names, program.names.value(node)
    if isinstance(value, ast.Lambda):
        return value
    if isinstance(node, ast.Attribute):
        is_own = names.is_self(node.value) or names.class_named(node.value) is not None
        classes = names.classes(node) if is_own else []
        found = (names.scopes[around].names.get(node.attr) for around in classes)
        found = next(filter(None, found), [])
    else:
        found = [names.only(node)]
    made = found[0].node if len(found) == 1 and found[0] is not None else None
    is_function = isinstance(made, ast.FunctionDef) and not found[0].is_parameter
    return made if is_function and not program.is_compact(made) else None


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
    """Returns whether a use of a cell reads its `initialize_carry`, called or not."""
    parent = program.source.parents[use]
    return isinstance(parent, ast.Attribute) and parent.attr == "initialize_carry"
