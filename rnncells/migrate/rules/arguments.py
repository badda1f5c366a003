"""Edits of arguments of calls: joined shapes and deleted arguments."""

import ast
from bisect import bisect_left

from rnncells.migrate.code.carry_calls import CarryCall
from rnncells.migrate.code.cells import CONVOLUTIONAL
from rnncells.migrate.code.program import Program
from rnncells.migrate.code.source import Edit, Source

# Expressions that need no parentheses after a star.
ATOMS = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant),
    *(ast.Tuple, ast.List, ast.ListComp),
)


def to_shape(program: Program, call: CarryCall) -> list[Edit]:
    """Returns the edits that join `batch_dims` and `size` into one shape.

    The text of the batch stays in place; the size moves to it.
    """
    source, node = program.source, call.node
    edits = []
    for keyword in node.keywords:
        if keyword.arg == "batch_dims":
            edits.append(Edit(*source.name_of(keyword), "input_shape"))
    edits += _with_size(program, call.arguments["batch_dims"], *_sizes(program, call))
    gone = [call.arguments[n] for n in ("size", "init_fn") if n in call.arguments]
    return [*edits, *taken_out(program, node, gone)]


def _sizes(program: Program, call: CarryCall) -> tuple[str, bool]:
    """Returns the text of the last numbers of a shape, and whether they are several."""
    start, end = _core(program, call.size)
    text = program.source.data[start:end].decode()
    made = program.constructor(call.receiver)
    cell = call.of_class if made is None else program.cell_class(made.func)
    is_image = cell is not None and cell.name in CONVOLUTIONAL
    if isinstance(call.size, ast.Tuple):
        return text, len(call.size.elts) > 1
    if is_image:
        text = f"*{text}" if isinstance(call.size, ATOMS) else f"*({text})"
    return text, False


def _with_size(
    program: Program, batch: ast.expr, sizes: str, are_several: bool
) -> list[Edit]:
    """Returns the edits that append numbers to a batch."""
    source = program.source
    if not sizes:
        return []
    if not isinstance(batch, ast.Tuple):
        start, end = outer(program, batch)
        # A star binds more tightly than operators.
        is_closed = isinstance(batch, ATOMS) or start < source.start(batch)
        before, behind = ("(*", "") if is_closed else ("(*(", ")")
        return [Edit(start, start, before), Edit(end, end, f"{behind}, {sizes})")]
    at, close = source.start(batch) + 1, source.end(batch) - 1
    text = sizes if are_several else f"{sizes},"
    if batch.elts:
        at, text = outer(program, batch.elts[-1])[1], f", {sizes}"
    # The comma of a one-element tuple is deleted, but comments stay.
    return [Edit(at, at if source.has_comment(at, close) else close, text)]


def taken_out(program: Program, call: ast.Call, values: list[ast.expr]) -> list[Edit]:
    """Returns the edits that delete arguments of a call, each with one comma.

    Comments around a value stay. Comments inside it move with it.
    """
    source, edits, used = program.source, [], set()
    for value in sorted(values, key=source.start):
        keyword = next((k for k in call.keywords if k.value is value), None)
        first, last = outer(program, value)
        first = first if keyword is None else source.start(keyword)
        comma = source.code[bisect_left(source.code, (first,)) - 1]
        behind = source.code[bisect_left(source.code, (last,))]
        is_behind = (
            comma[2] != "," or comma in used or source.has_comment(comma[1], first)
        )
        if is_behind and behind[2] == ",":
            comma = behind
            last = source.tokens[bisect_left(source.tokens, (comma[1],))][0]
        elif comma[2] == "," and comma not in used:
            first = comma[0]
        used.add(comma)
        start, end = _core(program, value)
        edits += [
            *_without(source, first, start),
            Edit(start, end, ""),
            *_without(source, end, last),
        ]
    return edits


def _without(source: Source, start: int, end: int) -> list[Edit]:
    """Returns the edits that delete a part of a call except for comments."""
    edits, at, stop = [], start, start
    for first, last, token in source.tokens_between(start, end):
        if not token.startswith("#"):
            at = first if at is None else at
        elif at is not None:
            edits.append(Edit(at, stop, ""))
            at = None
        stop = last
    return edits if at is None else [*edits, Edit(at, end, "")]


def _core(program: Program, node: ast.expr) -> tuple[int, int]:
    """Returns where an argument, or the inside of a tuple, starts and ends."""
    start, end = program.source.start(node), program.source.end(node)
    if not isinstance(node, ast.Tuple):
        return start, end
    if not node.elts:
        return start + 1, start + 1
    return outer(program, node.elts[0])[0], outer(program, node.elts[-1])[1]


def outer(program: Program, node: ast.expr) -> tuple[int, int]:
    """Returns where an argument of a call starts and ends, with its parentheses."""
    source = program.source
    start, end = source.start(node), source.end(node)
    code = source.code
    left, right = bisect_left(code, (start,)) - 1, bisect_left(code, (end,))
    parent = source.parents[node]
    parent = source.parents[parent] if isinstance(parent, ast.keyword) else parent
    least = source.end(parent.func) if isinstance(parent, ast.Call) else 0
    # The first parenthesis after a function belongs to the call.
    first = bisect_left(code, (least,))
    while code[first][2] == ")":
        first += 1
    while left > first and code[left][2] == "(" and code[right][2] == ")":
        start, end = code[left][0], code[right][1]
        left, right = left - 1, right + 1
    return start, end
