"""RC14: notes, only printed, about hand-written loops over cells: `RNN` runs them."""

import libcst as cst

from rnncells_migrate.changes import Changes
from rnncells_migrate.names import FLAX, last_name
from rnncells_migrate.tree import walk
from rnncells_migrate.widths import Widths

PAGE = "see docs/how-to/lengths.md of rnncells"
OF_LIFT = f"`RNN(cell)` runs a cell over time: {PAGE}"
OF_RESETS = f"`RNN(cell)(x, resets=...)` of rnncells resets the carry: {PAGE}"
OF_FLIP = f"`RNN(cell, reverse=True)` and `Bidirectional` take `seq_lengths`: {PAGE}"


def note_hand_written(program: Widths, changes: Changes) -> None:
    """Notes scans of cells, scanned methods with a cell, and flipped sequences."""
    scan = f"{FLAX}.scan"
    for call in program.calls:
        if program.qualified(call.func) == scan and program.cell_class(call):
            changes.note("RC14", call, OF_LIFT)
        elif last_name(call.func) == "flip_sequences":
            changes.note("RC14", call, OF_FLIP)
    for node in program.nodes:
        parts = [p for d in getattr(node, "decorators", ()) for p in walk(d)]
        # `@partial(nn.scan, ...)`
        names = [program.qualified(p.value) for p in parts if isinstance(p, cst.Arg)]
        if scan in names and any(p in program.constructed for p in walk(node)):
            changes.note("RC14", node, OF_RESETS)
