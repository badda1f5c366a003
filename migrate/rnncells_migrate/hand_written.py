"""RC13 and RC14: notes about code that runs, for which there is a better form.

The notes are only printed: code for today's Flax is never changed.
"""

import libcst as cst

from rnncells_migrate.carries import NAME, carry_call
from rnncells_migrate.cells import argument
from rnncells_migrate.changes import Changes
from rnncells_migrate.names import FLAX, last_name
from rnncells_migrate.tree import walk
from rnncells_migrate.widths import Widths

PAGE = "see docs/how-to/lengths.md of rnncells"
OF_LIFT = f"`RNN(cell)` runs a cell over time: {PAGE}"
OF_RESETS = f"`RNN(cell)(x, resets=...)` of rnncells resets the carry: {PAGE}"
OF_FLIP = f"`RNN(cell, reverse=True)` and `Bidirectional` take `seq_lengths`: {PAGE}"
UNOWNED = (
    "this cell only creates a carry, but takes the parameter name of the next cell of "
    "its class: pass `parent=None`, and rename the parameters in old checkpoints"
)


def note_hand_written(program: Widths, changes: Changes) -> None:
    """Notes scans over cells that `RNN` can run, and cells that only take a name."""
    for call in program.calls:
        if program.qualified(call.func) == f"{FLAX}.scan" and call.args:
            if program.cell_class(call.args[0].value) is not None:
                changes.note("RC14", call, OF_LIFT)
        elif last_name(call.func) == "flip_sequences":
            changes.note("RC14", call, OF_FLIP)
        elif _takes_a_name(program, call):
            changes.note("RC13", call, UNOWNED)
    for method in program.nodes:
        if isinstance(method, cst.FunctionDef) and _is_scanned(program, method):
            if any(part in program.constructed for part in walk(method.body)):
                changes.note("RC14", method, OF_RESETS)


def _is_scanned(program: Widths, method: cst.FunctionDef) -> bool:
    """Returns whether a method is decorated with `partial(nn.scan, ...)`."""
    decorators = (decorator.decorator for decorator in method.decorators)
    return any(
        isinstance(call, cst.Call)
        and call.args
        and program.qualified(call.args[0].value) == f"{FLAX}.scan"
        for call in decorators
    )


def _takes_a_name(program: Widths, call: cst.Call) -> bool:
    """Returns whether a current cell in a compact method only creates a carry."""
    if call not in program.constructed or program.features(call) is None:
        return False
    attribute, method = program.parent(call), program.function_around(call)
    is_carry = isinstance(attribute, cst.Attribute) and attribute.attr.value == NAME
    if not is_carry or method is None or carry_call(program.parent(attribute)):
        return False
    is_compact = any(last_name(d.decorator) == "compact" for d in method.decorators)
    return is_compact and argument(call, "parent") is None
