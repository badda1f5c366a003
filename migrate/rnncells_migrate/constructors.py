"""RC01: cells that are constructed without `features`; RC05: the name `ConvLSTM`."""

import re

import libcst as cst

from rnncells_migrate.carries import NAME
from rnncells_migrate.cells import Cells, argument
from rnncells_migrate.changes import Changes
from rnncells_migrate.edits import copy, with_features
from rnncells_migrate.names import last_name, self_attribute, targets
from rnncells_migrate.tree import Tree
from rnncells_migrate.widths import Widths

# Names of variables that hold a class of cells.
CLASS = re.compile(r"cell_?(cls|class|classes|type|types)$|^(cell_)?cls$", re.IGNORECASE)
BY_KEYWORD = "; pass the functions by keyword (`gate_fn=...`)"


def rewrite_constructors(
    tree: Tree, cells: Cells, widths: Widths, changes: Changes
) -> None:
    """Gives cells their width, the size of their carry."""
    for call, cell in cells.constructed.items():
        features = cells.features(call)
        if tree.is_left(call) or cell.is_convolutional or features is not None:
            continue
        width = widths.of(call)
        if width is not None:
            by_keyword = cell.own is not None
            changes.edit("RC01", call, _features_edit(width, by_keyword))
        elif cell.own is None or _is_passed_on(tree, widths, call):
            changes.mark("RC01", call, _unknown_width(call, widths, cell.name))


def _features_edit(width: cst.BaseExpression, by_keyword: bool):
    return lambda call: with_features(call, copy(width), by_keyword)


def _is_passed_on(tree: Tree, widths: Widths, call: cst.Call) -> bool:
    """Returns whether a cell does more than to be called."""
    places = [call] if widths.use(call) else widths.places(call)
    return not places or any(widths.use(place) is None for place in places)


def _unknown_width(call: cst.Call, widths: Widths, name: str) -> str:
    name = last_name(call.func) or name
    seen = "the width of this cell is not given beside it"
    if widths.use(call) is not None:
        seen = "the width cannot be read from the carry of this call"
    end = BY_KEYWORD if call.args and call.args[0].keyword is None else ""
    return f"{seen}: write `{name}(features=...)` with the width of its carry{end}"


def mark_doubtful(tree: Tree, cells: Cells, changes: Changes) -> None:
    """Marks calls that may construct a cell without `features`.

    They may also be current code, so they are marked only beside old code.
    """
    for call in tree.calls:
        if tree.is_left(call):
            continue
        if call in cells.constructed:
            features = cells.features(call)
            if isinstance(features, str):
                text = f"`{features}` may hold `features`: if not, add it there or here"
                changes.mark("RC01", call, text)
        elif CLASS.search(last_name(call.func)) and argument(call, "features", 0) is None:
            name = tree.code(call.func)
            text = f"`{name}` may be one of several classes of cells: pass `features=...`"
            changes.mark("RC01", call, text)


def rename_conv_lstm(tree: Tree, cells: Cells, changes: Changes) -> None:
    """Renames `nn.ConvLSTM` where no parameter is named after the class."""
    for node in tree.nodes:
        if not isinstance(node, cst.Attribute | cst.Name) or tree.is_left(node):
            continue
        if last_name(node) != "ConvLSTM" or cells.class_of(node) is None:
            continue
        if isinstance(node, cst.Name):
            text = "import `ConvLSTMCell` in place of `ConvLSTM`, and give the cell a name"
            changes.mark("RC05", node, f'{text}: `name="ConvLSTM_0"`')
        elif _has_own_name(tree, node):
            name = cst.Name("ConvLSTMCell")
            changes.edit("RC05", node, lambda node: node.with_changes(attr=name))
        else:
            text = "old checkpoints contain the automatic name of this cell: write "
            text += '`ConvLSTMCell(..., name="ConvLSTM_0")`, with its number there'
            changes.mark("RC05", node, text)


def _has_own_name(tree: Tree, node: cst.Attribute) -> bool:
    """Returns whether the class that a node names does not name parameters."""
    parent = tree.parent(node)
    if isinstance(parent, cst.Attribute):
        return parent.attr.value == NAME
    if not isinstance(parent, cst.Call) or parent.func is not node:
        return False
    assigned = tree.parent(parent)
    if isinstance(assigned, cst.Assign) and self_attribute(targets(assigned)[0]):
        return True
    is_named = argument(parent, "name") is not None
    return is_named or tree.function_of(node) is None
