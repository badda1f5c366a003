"""RC04: the size of an `RNN` moves to its cell."""

import libcst as cst

from rnncells_migrate.carry_rules import X64
from rnncells_migrate.cells import Cells, argument
from rnncells_migrate.changes import Changes
from rnncells_migrate.edits import without_argument
from rnncells_migrate.tree import Tree
from rnncells_migrate.widths import Widths, size_index

NOT_MOVED = (
    "the cell is constructed elsewhere, or its `features` are not known: pass the size "
    "to the cell, and not to `RNN`"
)
OTHER_DTYPE = (
    "the carry now has the `param_dtype` of the cell: pass the dtype and the size to the "
    "cell, and not to `RNN`"
)
SILENT = "the cell has `features`, so the second argument sets `time_major`: delete it"
SHIFTED = "write the arguments behind the size as keywords, and pass the size to the cell"


def rewrite_layers(tree: Tree, cells: Cells, widths: Widths, changes: Changes) -> None:
    for layer in widths.layers:
        index = size_index(layer)
        if index is None or tree.is_left(layer):
            continue
        is_named = layer.args[index].keyword is not None
        cell = argument(layer, "cell", 0)
        made = cells.cells_in(cell) if cell is not None else []
        size = layer.args[index].value
        if not made:
            if is_named or isinstance(size, cst.Integer | cst.Tuple):
                changes.mark("RC04", layer, NOT_MOVED)
            continue
        has_features = all(cells.features(call) is not None for call in made)
        if has_features and not is_named and not isinstance(size, cst.Tuple):
            # It runs today: the size is taken for a bool.
            if _is_number(tree, cells, size, made):
                changes.note("RC12", layer, SILENT)
            continue
        why = _why_not(tree, cells, widths, layer, made, size)
        if why:
            changes.mark("RC04", layer, why)
        else:
            changes.edit("RC04", layer, _without(index))


def _without(index: int):
    return lambda layer: without_argument(layer, index)


def _is_number(
    tree: Tree, cells: Cells, size: cst.BaseExpression, made: list[cst.Call]
) -> bool:
    widths = [cells.features(call) for call in made]
    known = [tree.code(w) for w in widths if isinstance(w, cst.CSTNode)]
    return isinstance(size, cst.Integer) or tree.code(size) in known


def _why_not(
    tree: Tree,
    cells: Cells,
    widths: Widths,
    layer: cst.Call,
    made: list[cst.Call],
    size: cst.BaseExpression,
) -> str:
    """Returns why the size cannot move to the cells; "" if it can."""
    if sum(arg.keyword is None for arg in layer.args) > 4:
        return SHIFTED
    for call in made:
        cell, features = cells.constructed[call], cells.features(call)
        width = widths.of(call) if features is None else features
        last = size.elements[-1].value if isinstance(size, cst.Tuple) else size
        if isinstance(size, cst.Tuple) != cell.is_convolutional:
            return NOT_MOVED
        if not isinstance(width, cst.CSTNode) or tree.code(width) != tree.code(last):
            return NOT_MOVED
        if X64.search(tree.text) or argument(call, "param_dtype") is not None:
            return OTHER_DTYPE
    return ""
