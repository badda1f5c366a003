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
CLASS = re.compile(
    r"cell_?(cls|class|type)(es|s)?(\[.*)?$|^cls$|^getattr.*Cell", re.IGNORECASE
)
NEW_NAME = cst.Name("ConvLSTMCell")
AUTOMATIC = (
    "old checkpoints have the automatic name of this cell, with its number: write "
    '`ConvLSTMCell(..., name="ConvLSTM_0")`'
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
            continue
        # An own cell that is only called creates no carry.
        uses = [program.called(place) for place in program.uses(call) or [call]]
        if not cell.is_own or None in uses:
            name = last_name(call.func) or cell.name
            where = "in its call" if program.called(call) else "beside it"
            text = f"the width is not known {where}: write `{name}(features=...)` with "
            text += "the last axis of its carry, and functions as keywords"
            changes.mark("RC01", call, text)


def mark_doubtful(program: Widths, changes: Changes) -> None:
    """Marks calls that may construct a cell without `features`, beside old code."""
    is_old = changes.edits or changes.marks
    for call in program.calls if is_old else ():
        if program.is_left(call):
            continue
        stars = [arg.value for arg in call.args if arg.star]
        if call in program.constructed:
            if program.features(call) in stars:
                name = program.code(program.features(call))
                text = f"`{name}` may hold `features`: if not, add it there or here"
                changes.mark("RC01", call, text)
        elif _may_be_class(program, call.func) and not argument(call, "features", 0):
            name = program.code(call.func)
            text = f"`{name}` may be one of several classes of cells: pass `features`"
            changes.mark("RC01", call, text)


def _may_be_class(program: Widths, node: cst.BaseExpression) -> bool:
    """Returns whether an expression may stand for several classes of cells."""
    values = [value for value in program.values(node) if value is not None]
    choices = [value for value in values if isinstance(value, cst.IfExp)]
    values += [part for choice in choices for part in (choice.body, choice.orelse)]
    is_class = any(program.cell_class(value) is not None for value in values)
    return is_class or CLASS.search(program.code(node)) is not None


def rename_conv_lstm(program: Widths, changes: Changes) -> None:
    """Renames `nn.ConvLSTM` where no parameter is named after the class."""
    for node in program.nodes:
        if last_name(node) != "ConvLSTM" or isinstance(node, cst.Subscript):
            continue
        cell = program.cell_class(node)
        if cell is None or cell.name != "ConvLSTM" or program.is_left(node):
            continue
        if isinstance(node, cst.Attribute) and _has_own_name(program, node):
            changes.edit("RC05", node, lambda n: n.with_changes(attr=NEW_NAME))
        else:
            changes.mark("RC05", node, AUTOMATIC)


def _has_own_name(program: Widths, node: cst.Attribute) -> bool:
    """Returns whether the class that a node names does not name parameters."""
    parent = program.parent(node)
    if isinstance(parent, cst.Attribute):
        return parent.attr.value == NAME
    if not isinstance(parent, cst.Call) or parent.func is not node:
        return False
    assigned = targets(program.parent(parent))
    is_attribute = any(self_attribute(target) for target in assigned)
    name = argument(parent, "name")
    is_named = is_attribute or (name is not None and program.code(name) != "None")
    return is_named or program.nearest(node, cst.FunctionDef) is None
