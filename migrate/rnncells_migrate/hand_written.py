"""RC13 and RC14: notes about code that runs, for which there is a better form.

The notes are printed only: today's code would be marked again after each run.
"""

import libcst as cst

from rnncells_migrate.carries import NAME, carry_call
from rnncells_migrate.cells import Cells, argument
from rnncells_migrate.changes import Changes
from rnncells_migrate.names import FLAX, Names, last_name
from rnncells_migrate.tree import Tree, walk

PAGE = "docs/how-to/lengths.md"
OF_LIFT = f"`RNN(cell)` of rnncells scans a cell over time: see {PAGE}"
OF_RESETS = (
    f"`RNN(cell)(x, resets=...)` of rnncells resets the carry within a sequence: see {PAGE}"
)
OF_FLIP = (
    "`Bidirectional(RNN(cell), RNN(cell))`, or `RNN(cell, reverse=True)`, flips with "
    f"`seq_lengths`: see {PAGE}"
)
UNOWNED = (
    "this cell only creates a carry, but takes the parameter name of the next cell of "
    "its class: pass `parent=None`, and rename the parameters in old checkpoints"
)


def note_hand_written(tree: Tree, names: Names, cells: Cells, changes: Changes) -> None:
    """Notes scans over cells that `RNN` can run, and cells that only take a name."""
    for call in tree.calls:
        if names.qualified(call.func) == f"{FLAX}.scan" and call.args:
            if cells.class_of(call.args[0].value) is not None:
                changes.note("RC14", call, OF_LIFT)
        elif last_name(call.func) == "flip_sequences":
            changes.note("RC14", call, OF_FLIP)
        elif _only_creates_a_carry(tree, cells, call):
            changes.note("RC13", call, UNOWNED)
    for method in tree.nodes:
        if isinstance(method, cst.FunctionDef) and _is_scanned(names, method):
            if any(part in cells.constructed for part in walk(method.body)):
                changes.note("RC14", method, OF_RESETS)


def _is_scanned(names: Names, method: cst.FunctionDef) -> bool:
    """Returns whether a method is decorated with `partial(nn.scan, ...)`."""
    return any(
        isinstance(d.decorator, cst.Call)
        and d.decorator.args
        and names.qualified(d.decorator.args[0].value) == f"{FLAX}.scan"
        for d in method.decorators
    )


def _only_creates_a_carry(tree: Tree, cells: Cells, call: cst.Call) -> bool:
    """Returns whether a current cell in a compact method has only a carry."""
    if call not in cells.constructed or cells.features(call) is None:
        return False
    attribute, method = tree.parent(call), tree.function_of(call)
    if not isinstance(attribute, cst.Attribute) or attribute.attr.value != NAME:
        return False
    if carry_call(tree.parent(attribute)) is not None or method is None:
        return False
    is_compact = any(last_name(d.decorator) == "compact" for d in method.decorators)
    return is_compact and argument(call, "parent") is None
