"""RC06: users' own cells with a static `initialize_carry`."""

import ast
from collections.abc import Iterator

from rnncells.migrate.code.own_cells import OwnCell, own_cell, signature
from rnncells.migrate.code.program import Program
from rnncells.migrate.code.source import Edit, Source
from rnncells.migrate.rules.finding import Finding


def classes(program: Program) -> Iterator[Finding]:
    """Yields the rewrite, or the mark, of each class in the old form."""
    for node in program.source.nodes:
        if isinstance(node, ast.ClassDef):
            cell = own_cell(program.names, node)
            if cell is not None:
                edits = [] if cell.why_not else _edits(program, cell)
                yield Finding(
                    "RC06", cell.method, edits, cell.why_not, of_class=node.name
                )


def _edits(program: Program, cell: OwnCell) -> list[Edit]:
    source, method = program.source, cell.method
    indent = source.indent(method.lineno)
    deeper = indent.removeprefix(source.indent(cell.node.lineno)) or "    "
    decorator = method.decorator_list[0]
    start, end = signature(source, method)
    first = source.text(method.args.args[0])
    edits = [
        Edit(source.start(decorator), source.end(decorator), f"{cell.linen}.nowrap"),
        Edit(start, end, f"self, {first}, input_shape"),
        *_unpacked(program, cell),
        _with_fields(program, cell, indent),
    ]
    if not cell.feature_axes:
        lines = ["", "@property", "def num_feature_axes(self):", f"{deeper}return 1"]
        edits.append(source.behind(method.end_lineno, lines, indent))
    return edits


def _unpacked(program: Program, cell: OwnCell) -> list[Edit]:
    """Returns the edits that define the old arguments before the first statement."""
    source, method = program.source, cell.method
    _, batch_dims, size, *init_fn = [arg.arg for arg in method.args.args]
    has_doc = ast.get_docstring(method, clean=False) is not None
    statements = method.body[has_doc:]
    if not statements:
        return []
    lines = [f"{batch_dims}, {size} = input_shape[:-1], self.features"]
    lines += [f"{name} = self.carry_init" for name in init_fn]
    first, number = statements[0], _first_line(statements[0])
    at, inner = source.line_starts[number - 1], source.indent(number)
    if number == first.lineno and (
        source.first_line(number) < number
        or source.data[at : source.start(first)].strip()
    ):
        at = source.start(first)
        return [Edit(at, at, "".join(f"{line}; " for line in lines))]
    text = "".join(f"{inner}{line}{source.newline}" for line in lines)
    return [Edit(at, at, text)]


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _with_fields(program: Program, cell: OwnCell, indent: str) -> Edit:
    """Returns the edit that adds fields after the existing ones."""
    source, node = program.source, cell.node
    lines = ["features: int = None"]
    if len(cell.method.args.args) == 4:
        lines.append(f"carry_init: object = {_default(source, cell)}")
    if cell.fields:
        last = list(cell.fields.values())[-1]
        return source.behind(last.end_lineno, lines, indent)
    if ast.get_docstring(node, clean=False) is not None:
        return source.behind(node.body[0].end_lineno, ["", *lines], indent)
    number = _first_line(node.body[0])
    while source.line(number - 1).lstrip().startswith("#"):
        number -= 1
    at = source.line_starts[number - 1]
    text = "".join(f"{indent}{line}{source.newline}" for line in lines)
    return Edit(at, at, text + source.newline)


def _default(source: Source, cell: OwnCell) -> str:
    """Returns the text of the default of `carry_init`."""
    args = cell.method.args
    if not args.defaults:
        return f"{cell.linen}.initializers.zeros_init()"
    _, end = signature(source, cell.method)
    tokens = source.tokens_between(source.end(args.args[-1]), end)
    start = next(stop for _, stop, token in tokens if token == "=")
    text = source.data[start:end].decode().strip()
    return f"({text})" if len(text.splitlines()) > 1 else text
