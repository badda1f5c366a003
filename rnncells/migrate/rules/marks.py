"""Texts of marks: what was seen in the code, and what to write instead."""

import ast

from rnncells.migrate.code.carry_calls import CLASS, CarryCall, old_carry_calls
from rnncells.migrate.code.cells import CellClass
from rnncells.migrate.code.names import last_name
from rnncells.migrate.code.program import Program
from rnncells.migrate.code.widths import Widths, has_width, shape_of

# Longer expressions are cut in a mark.
LONGEST = 40
BY_KEYWORD = "pass the function by keyword (`gate_fn=...`)"


def text(program: Program, node: ast.expr) -> str:
    """Returns an expression's text on one line, shortened."""
    line = " ".join(program.source.text(node).split()).replace("`", "'")
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def no_width(program: Program, widths: Widths, call: ast.Call, cell: CellClass) -> str:
    """Returns why `features` of a cell is not known, and what to write."""
    find = _of_call if widths.is_called_at_once(call) else _of_cell
    why = find(program, widths, call, cell)
    # `features` comes first now: a function by position would be taken for it.
    return f"{why}; {BY_KEYWORD}" if call.args and not cell.is_own else why


def _of_cell(program: Program, widths: Widths, call: ast.Call, cell: CellClass) -> str:
    """Returns the same of a cell that is called elsewhere."""
    name = last_name(call.func) or cell.name
    carry = next(widths.carries_given(call), None)
    given = dict.fromkeys(
        text(program, carry.size)
        for carry in old_carry_calls(program)
        if carry.size is not None
        and (carry.of_class is None or carry.of_class.name == cell.name)
    )
    sizes = " and ".join(f"`{size}`" for size in given)
    sizes = f"the sizes {sizes} are" if len(given) > 1 else f"the size {sizes} is"
    if carry is not None and given:
        seen = f"{sizes} given, but the carry comes from `{text(program, carry)}`"
    elif carry is not None:
        seen = f"the carry comes from `{text(program, carry)}`"
    elif given:
        seen = f"{sizes} given, but perhaps for another cell"
    else:
        seen = "no carry of this cell is created or used here"
    return f"{seen}: write `{name}(features=...)` with the width of its carry"


def _of_call(program: Program, widths: Widths, call: ast.Call, cell: CellClass) -> str:
    """Returns the same of a cell that is called where it is constructed."""
    name = last_name(call.func) or cell.name
    carry = next(widths.carries_given(call), None)
    if carry is None:
        return f"the cell is called without a carry: write `{name}(features=...)`"
    if not has_width(cell):
        seen = "the last axis of its carry may be an axis of `nn.vmap`"
        return f"{seen}: write `{name}(features=...)` with the width of one cell"
    return (
        f"the carry is `{text(program, carry)}`: assign it to a variable first, and "
        f"write `{name}({shape_of('carry', cell)})`"
    )


def unpacked(program: Program, call: ast.Call) -> str:
    given = [arg.value for arg in call.args if isinstance(arg, ast.Starred)]
    given += [keyword.value for keyword in call.keywords if keyword.arg is None]
    name = text(program, given[0])
    return f"`{name}` may hold `features`: if it does not, add it there or here"


def unknown_argument(program: Program, call: ast.Call) -> str:
    first = text(program, call.args[0])
    return (
        f"`{first}` may be `features` or a gate function: write `features=...`, and "
        f"{BY_KEYWORD}"
    )


def unknown_class(program: Program, node: ast.expr) -> str:
    name = text(program, node)
    return f"`{name}` may be one of several classes of cells: pass `features=...`"


def unknown_receiver(program: Program, call: CarryCall) -> str:
    """Returns the mark of a carry of what may be a cell, a class or something else."""
    name = text(program, call.receiver)
    shape = "(*batch_dims, size)"
    if program.kinds.of(call.receiver).is_class:
        return (
            f"`{name}` may be one of several classes of cells: write "
            f"`{name}(size, parent=None).initialize_carry(key, {shape})`"
        )
    if last_name(call.receiver)[:1].isupper() or CLASS.search(last_name(call.receiver)):
        return (
            f"`{name}` may be a class of cells or something else: if it is a class of "
            f"cells, write `{name}(size, parent=None).initialize_carry(key, {shape})`"
        )
    return (
        f"`{name}` may be a cell, a class of cells or something else: if it is a cell, "
        f"write `{name}.initialize_carry(key, {shape})`"
    )


def unknown_instance(program: Program, call: CarryCall) -> str:
    """Returns the mark of a carry of a class whose arguments are not known."""
    name, also, size = text(program, call.receiver), "`kernel_size`", "*size"
    if call.of_class.is_own:
        also, size = "its required fields", "size"
    return (
        f"`{name}` must be constructed first: write `{name}(...)` with `features` and "
        f"{also} and `parent=None`, then "
        f"`.initialize_carry(key, (*batch_dims, {size}))`"
    )


def unknown_arguments(program: Program, call: CarryCall) -> str:
    name = text(program, call.receiver)
    made = name if call.of_class is None else f"{name}(size, parent=None)"
    return (
        f"not all arguments are known: write `{made}.initialize_carry(key, "
        "(*batch_dims, size))`"
    )


def computed(program: Program, what: str, node: ast.expr, when: str) -> str:
    """Returns the mark of an argument with a call that would run twice or earlier."""
    name = what if what.startswith("the ") else f"`{what}`"
    return (
        f"{name} is `{text(program, node)}`, which would run {when}: assign it to a "
        "variable first"
    )


def other_size(
    program: Program, call: CarryCall, made: ast.Call, width: str | None
) -> str:
    """Returns the mark of a carry whose size may not be the width of its cell."""
    size, name = text(program, call.size), last_name(made.func)
    seen = "without `features`"
    if width is not None:
        seen = f"with `features={' '.join(width.split())}`"
    return (
        f"the size `{size}` is given, but the cell `{name}(...)` is constructed "
        f"{seen}: make both equal"
    )


def unmoved_size(program: Program, size: ast.expr) -> str:
    """Returns the mark of an `RNN` whose size cannot move to the cell."""
    return (
        f"the size `{text(program, size)}` is given, but the cell is constructed "
        "elsewhere or its `features` are not known: pass the size to the cell"
    )
