"""RC06: users' cells with a static `initialize_carry`."""

import ast
from collections.abc import Iterator

from rnncells.migrate.cells import OwnCell, own_cell
from rnncells.migrate.program import Program
from rnncells.migrate.rules import Finding
from rnncells.migrate.source import Edit


def classes(program: Program) -> Iterator[Finding]:
    """Yields what each class of the old form becomes."""
    for node in program.source.nodes:
        if isinstance(node, ast.ClassDef):
            cell = own_cell(program.names, node)
            if cell is not None:
                edits = [] if cell.why_not else _edits(program, cell)
                yield Finding("RC06", cell.method, edits, cell.why_not)


def _edits(program: Program, cell: OwnCell) -> list[Edit]:
    source, method = program.source, cell.method
    line = source.line(method.lineno)
    indent = line[: len(line) - len(line.lstrip())]
    newline = "\r\n" if line.endswith("\r\n") else "\n"
    names = [arg.arg for arg in method.args.args]
    rng, batch_dims, size, *init_fn = names
    decorator = method.decorator_list[0]
    edits = [
        Edit(source.start(decorator), source.end(decorator), f"{cell.linen}.nowrap")
    ]
    arguments = method.args.args
    last = [*arguments, *method.args.defaults][-1]
    end = max(source.end(arguments[-1]), source.end(last))
    edits.append(Edit(source.start(arguments[0]), end, f"self, {rng}, input_shape"))
    body = method.body
    has_doc = ast.get_docstring(method, clean=False) is not None
    first = body[1] if has_doc and len(body) > 1 else body[0]
    inner = source.line(first.lineno)
    inner = inner[: len(inner) - len(inner.lstrip())]
    at = source.line_starts[first.lineno - 1]
    text = f"{inner}{batch_dims}, {size} = input_shape[:-1], self.features{newline}"
    if init_fn:
        text += f"{inner}{init_fn[0]} = self.carry_init{newline}"
    edits.append(Edit(at, at, text))
    edits.append(_field_edit(program, cell, indent, newline))
    if not any(
        getattr(s, "name", "").startswith("num_feature") for s in cell.node.body
    ):
        at = source.end(method)
        text = (
            f"{newline}{newline}{indent}@property{newline}"
            f"{indent}def num_feature_axes(self):{newline}{indent}    return 1"
        )
        edits.append(Edit(at, at, text))
    return edits


def _field_edit(program: Program, cell: OwnCell, indent: str, newline: str) -> Edit:
    """Returns the edit that adds fields, behind those that are there."""
    source, known = program.source, cell.fields
    lines = []
    if "features" not in known:
        lines.append("features: int = None")
    if len(cell.method.args.args) == 4 and "carry_init" not in known:
        default = f"{cell.linen}.initializers.zeros_init()"
        if cell.method.args.defaults:
            default = source.text(cell.method.args.defaults[-1])
        lines.append(f"carry_init: object = {default}")
    statements = list(known.values())
    text = "".join(f"{indent}{line}{newline}" for line in lines)
    if statements:
        number = statements[-1].end_lineno + 1
        at = source.line_starts[number - 1]
        return Edit(at, at, text)
    method = next(s for s in cell.node.body if isinstance(s, ast.FunctionDef))
    number = min([method.lineno, *(d.lineno for d in method.decorator_list)])
    at = source.line_starts[number - 1]
    return Edit(at, at, text + (newline if lines else ""))
