"""Edits of the arguments of calls: shapes, and arguments that go."""

import ast
from bisect import bisect_left

from rnncells.migrate.code.carry_calls import CarryCall
from rnncells.migrate.code.cells import CONVOLUTIONAL
from rnncells.migrate.code.program import Program
from rnncells.migrate.code.source import Edit


def to_shape(program: Program, call: CarryCall) -> list[Edit]:
    """Returns the edits that make one shape of `batch_dims` and `size`."""
    source = program.source
    batch, size = call.arguments["batch_dims"], call.size
    keywords = {k.arg: k for k in call.node.keywords}
    order = sorted(call.arguments.values(), key=source.start)
    if order.index(size) != order.index(batch) + 1:
        return _apart(program, call)
    edits = []
    if "batch_dims" in keywords:
        at = source.start(keywords["batch_dims"])
        edits.append(Edit(at, at + len("batch_dims"), "input_shape"))
    start, end = outer(program, batch)
    elements, close = batch.elts if isinstance(batch, ast.Tuple) else None, ")"
    if elements is None:
        # A star binds closer than operators.
        is_atom = isinstance(batch, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
        edits.append(Edit(start, start, "(*" if is_atom else "(*("))
        last = end
        if not is_atom:
            edits.append(Edit(end, end, ")"))
    elif elements:
        _, last = outer(program, elements[-1])
    else:
        edits.append(Edit(start, end, "("))
        last, close = end, ",)"
    at = size if "size" not in keywords else keywords["size"]
    first, _ = outer(program, size)
    first = first if at is size else source.start(size)
    # From the last of the batch to the size, but for comments.
    if any(t[2].startswith("#") for t in source.tokens_between(last, first)):
        edits.append(Edit(last, end, ""))
        if at is not size:
            edits.append(Edit(source.start(at), first, ""))
        if elements == []:
            comma = next(t for t in source.tokens_between(end, first) if t[2] == ",")
            edits.append(Edit(comma[0], comma[1], ""))
    else:
        edits.append(Edit(last, first, "" if elements == [] else ", "))
    edits += _size_edits(program, call, size, close)
    if "init_fn" in call.arguments:
        edits += taken_out(program, call.node, [call.arguments["init_fn"]])
    return edits


def _size_edits(
    program: Program, call: CarryCall, size: ast.expr, close: str
) -> list[Edit]:
    start, end = outer(program, size)
    if isinstance(size, ast.Tuple):
        inner, outer_end = program.source.start(size) + 1, program.source.end(size)
        return [Edit(start, inner, ""), Edit(outer_end, end, "")]
    made = program.constructor(call.receiver)
    cell = call.of_class if made is None else program.cell_class(made.func)
    is_image = cell is not None and cell.name in CONVOLUTIONAL
    star = [Edit(start, start, "*")] if is_image else []
    return [*star, Edit(end, end, close)]


def _apart(program: Program, call: CarryCall) -> list[Edit]:
    """Returns the edits where `size` does not stand right behind `batch_dims`."""
    source = program.source
    batch, size = call.arguments["batch_dims"], call.size
    keywords = {k.arg: k for k in call.node.keywords}
    elements = [f"*({source.text(batch)})"]
    if isinstance(batch, ast.Tuple):
        elements = [source.text(element) for element in batch.elts]
    text = source.text(size)
    sizes = [text[1:-1] if isinstance(size, ast.Tuple) else text]
    shape = ", ".join([*elements, *sizes]) + ("" if elements else ",")
    name = "input_shape=" if "batch_dims" in keywords else ""
    start, end = outer(program, batch)
    start = source.start(keywords["batch_dims"]) if name else start
    gone = [
        call.arguments[name] for name in ("size", "init_fn") if name in call.arguments
    ]
    edits = taken_out(program, call.node, gone)
    return [Edit(start, end, f"{name}({shape})"), *edits]


def taken_out(program: Program, call: ast.Call, values: list[ast.expr]) -> list[Edit]:
    """Returns the edits that take arguments out of a call, each with a comma."""
    source, edits, used = program.source, [], set()
    tokens = source.tokens
    for value in sorted(values, key=source.start):
        keyword = next((k for k in call.keywords if k.value is value), None)
        first, last = outer(program, value)
        first = first if keyword is None else source.start(keyword)
        before = bisect_left(tokens, (first,)) - 1
        while tokens[before][2].startswith("#"):
            before -= 1
        comma = tokens[before]
        if comma[2] != "," or comma[0] in used:
            comma = tokens[bisect_left(tokens, (last,))]
        used.add(comma[0])
        edits += [Edit(first, last, ""), Edit(comma[0], comma[1], "")]
        # The space between them, if that is all there is.
        gap = (comma[1], first) if comma[1] <= first else (comma[1], comma[1] + 1)
        if not source.data[slice(*gap)].strip():
            edits.append(Edit(*gap, ""))
    return edits


def outer(program: Program, node: ast.expr) -> tuple[int, int]:
    """Returns where an argument of a call starts and ends, with its parentheses."""
    source = program.source
    start, end = source.start(node), source.end(node)
    tokens = source.tokens
    left = bisect_left(tokens, (start,)) - 1
    right = bisect_left(tokens, (end,))
    parent = source.parents[node]
    parent = source.parents[parent] if isinstance(parent, ast.keyword) else parent
    least = source.end(parent.func) if isinstance(parent, ast.Call) else 0
    # The first parenthesis behind a function is that of the call.
    first = bisect_left(tokens, (least,))
    while tokens[first][2] == ")":
        first += 1
    while left > first and tokens[left][2] == "(" and tokens[right][2] == ")":
        start, end = tokens[left][0], tokens[right][1]
        left, right = left - 1, right + 1
    return start, end
