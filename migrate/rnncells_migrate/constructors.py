"""RC01: cells that are constructed without `features`; RC05: the name `ConvLSTM`."""

import re

import libcst as cst

from rnncells_migrate.carries import NAME
from rnncells_migrate.cells import argument
from rnncells_migrate.changes import Changes
from rnncells_migrate.edits import copy, with_features
from rnncells_migrate.names import last_name, self_attribute, targets
from rnncells_migrate.widths import Widths

# Names of variables that hold a class of cells.
CLASS = re.compile(r"cell_?(cls|class|type)(es|s)?$|^cls$", re.IGNORECASE)
AUTOMATIC = (
    "old checkpoints contain the automatic name of this cell: write "
    '`ConvLSTMCell(..., name="ConvLSTM_0")`, with its number there'
)


def rewrite_constructors(program: Widths, changes: Changes) -> None:
    """Gives cells their width, the size of their carry."""
    for call, cell in program.constructed.items():
        has_features = cell.is_convolutional or program.features(call) is not None
        if has_features or program.is_left(call):
            continue
        width = program.width(call)
        if width is not None:
            changes.edit("RC01", call, with_features, copy(width), cell.is_own)
        elif not (cell.is_own and _is_only_called(program, call)):
            name = last_name(call.func) or cell.name
            changes.mark("RC01", call, _unknown_width(program, call, name))


def _is_only_called(program: Widths, call: cst.Call) -> bool:
    """Returns whether a cell needs no width, because it creates no carry."""
    places = program.uses(call) or [call]
    return all(program.called(place) is not None for place in places)


def _unknown_width(program: Widths, call: cst.Call, name: str) -> str:
    seen = "the width of this cell is not given beside it"
    if program.called(call) is not None:
        seen = "the width cannot be read from the carry of this call"
    text = f"{seen}: write `{name}(features=...)` with the width of its carry"
    has_function = call.args and call.args[0].keyword is None
    return f"{text}; pass `gate_fn` as a keyword" if has_function else text


def mark_doubtful(program: Widths, changes: Changes) -> None:
    """Marks calls that may construct a cell without `features`.

    They may also be current code, so they are marked only beside old code.
    """
    for call in program.calls:
        if program.is_left(call):
            continue
        stars = [arg.value for arg in call.args if arg.star]
        if call in program.constructed:
            if program.features(call) in stars:
                name = program.code(program.features(call))
                text = f"`{name}` may hold `features`: if not, add it there or here"
                changes.mark("RC01", call, text)
        elif CLASS.search(last_name(call.func)) and not argument(call, "features", 0):
            name = program.code(call.func)
            text = f"`{name}` may be one of several classes of cells: pass `features`"
            changes.mark("RC01", call, text)


def rename_conv_lstm(program: Widths, changes: Changes) -> None:
    """Renames `nn.ConvLSTM` where no parameter is named after the class."""
    for node in program.nodes:
        if last_name(node) != "ConvLSTM" or isinstance(node, cst.Subscript):
            continue
        if program.cell_class(node) is None or program.is_left(node):
            continue
        if isinstance(node, cst.Attribute) and _has_own_name(program, node):
            changes.edit("RC05", node, _renamed)
        else:
            changes.mark("RC05", node, AUTOMATIC)


def _renamed(node: cst.Attribute) -> cst.Attribute:
    return node.with_changes(attr=cst.Name("ConvLSTMCell"))


def _has_own_name(program: Widths, node: cst.Attribute) -> bool:
    """Returns whether the class that a node names does not name parameters."""
    parent = program.parent(node)
    if isinstance(parent, cst.Attribute):
        return parent.attr.value == NAME
    if not isinstance(parent, cst.Call) or parent.func is not node:
        return False
    assigned = program.parent(parent)
    if isinstance(assigned, cst.Assign) and self_attribute(targets(assigned)[0]):
        return True
    return argument(parent, "name") is not None or not program.function_around(node)
