"""RC04: the size of an `RNN` moves to its cell."""

import libcst as cst

from rnncells_migrate.carry_rules import has_width
from rnncells_migrate.cells import argument
from rnncells_migrate.changes import Changes
from rnncells_migrate.edits import without_argument
from rnncells_migrate.widths import Widths, size_index

NOT_MOVED = "pass the size to the cell, whose `features` are not known here"
SILENT = "the cell has `features`, so the second argument sets `time_major`: delete it"


def rewrite_layers(program: Widths, changes: Changes) -> None:
    """Rewrites the layers with a size, and notes those that only seem to have one."""
    for layer in program.layers:
        index, cell = size_index(layer), argument(layer, "cell", 0)
        size, is_named = layer.args[index].value, layer.args[index].keyword is not None
        cells = program.cells_in(cell) if cell is not None else []
        features = [program.features(call) for call in cells]
        is_literal = isinstance(size, cst.Integer | cst.Tuple)
        is_flag = None not in features and not is_named
        if not cells:
            if is_named or is_literal:
                changes.mark("RC04", layer, NOT_MOVED)
        elif is_flag and not isinstance(size, cst.Tuple):
            # It runs today: the size is taken for a bool.
            if is_literal or program.code(size) in map(program.code, features):
                changes.note("RC12", layer, SILENT)
        elif why := _why_not(program, layer, cells, size):
            changes.mark("RC04", layer, why)
        else:
            changes.edit("RC04", layer, without_argument, index)


def _why_not(program: Widths, layer: cst.Call, cells: list[cst.Call], size) -> str:
    """Returns why the size cannot move to the cells; "" if it can."""
    is_shape = isinstance(size, cst.Tuple) and len(size.elements) > 0
    last = size.elements[-1].value if is_shape else size
    for call in cells:
        if why := program.obstacle(layer, call):
            return why
        is_image = program.constructed[call].is_convolutional
        if is_shape != is_image or not has_width(program, call, last):
            return NOT_MOVED
    return ""
