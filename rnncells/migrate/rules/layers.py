"""RC04 and RC12: the size of a cell as an argument of `RNN`."""

import ast
from collections.abc import Iterator

from rnncells.migrate.code.names import argument, is_bool, last_name
from rnncells.migrate.code.program import Program
from rnncells.migrate.code.widths import Widths, cell_size, size_stays
from rnncells.migrate.rules import marks
from rnncells.migrate.rules.arguments import outer, taken_out
from rnncells.migrate.rules.finding import Finding
from rnncells.migrate.rules.rewrites import features_of, has_features


def layers(program: Program, widths: Widths) -> Iterator[Finding]:
    """RC04: the size as an argument of `RNN`; RC12: where the cell has one too."""
    for call in program.calls:
        if program.linen(call.func) != "RNN" or not call.args + call.keywords:
            if argument(call, "cell_size") is not None and program.has_linen:
                why = (
                    f"`cell_size={marks.text(program, argument(call, 'cell_size'))}` "
                    "is given: pass it to the cell as `features`"
                )
                yield Finding("RC04", call, why=why)
            continue
        size = cell_size(call)
        if size is None or _is_time_major(program, size):
            continue
        cell = argument(call, "cell", 0)
        made = program.constructor(cell) if cell is not None else None
        kind = program.cell_class(made.func) if made is not None else None
        if made is not None and not kind.has_features and has_features(program, made):
            if not _is_size(program, size, made):
                continue
            why = (
                f"the cell has `features`, so `{marks.text(program, size)}` sets "
                "`time_major`: delete it, or write `time_major=True`"
            )
            yield Finding("RC12", call, why=why)
            continue
        why = _why_not(program, widths, call, size, made)
        edits = [] if why else taken_out(program, call, [size])
        # The size moves to the cell.
        is_given = made is not None and not kind.has_features
        needs = (("RC01", made),) if is_given else ()
        yield Finding("RC04", call, edits, why, needs=needs)


def _why_not(
    program: Program,
    widths: Widths,
    call: ast.Call,
    size: ast.expr,
    made: ast.Call | None,
) -> str:
    """Returns why the size of an `RNN` cannot move to its cell; "" if it can."""
    if made is None:
        return marks.unmoved_size(program, size)
    why, kind = size_stays(program, call, made), program.cell_class(made.func)
    is_moved = kind.has_features or widths.of(made, kind) == program.source.text(size)
    if not (why or is_moved):
        return marks.unmoved_size(program, size)
    if not program.is_pure(size):
        return marks.computed(program, "the size", size, "no longer")
    if program.source.has_comment(*outer(program, size)):
        return "a comment stands in the size, which is deleted: move it"
    return why


def _is_size(program: Program, node: ast.expr, made: ast.Call) -> bool:
    """Returns whether an argument of `RNN` is a size: that of its cell, or named so."""
    text, features = program.source.text, features_of(program, made)
    is_same = features is not None and text(features) == text(node)
    return is_same or program.is_function(node) is False


def _is_time_major(program: Program, node: ast.expr) -> bool:
    """Returns whether an argument is a truth value, not a size."""
    found = program.names.only(node)
    annotation = getattr(found, "annotation", None)
    return (
        is_bool(program.names.value(node))
        or isinstance(node, ast.Compare)
        or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
        or (found is not None and is_bool(found.default))
        or (isinstance(annotation, ast.Name) and annotation.id == "bool")
        or last_name(node) == "time_major"
    )
