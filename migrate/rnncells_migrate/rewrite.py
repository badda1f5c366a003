"""The rewrite of one module: a survey by all rules, then one pass that applies it."""

import re
from collections import Counter
from typing import Any

import libcst as cst
from libcst.codemod import CodemodContext, VisitorBasedCodemodCommand

from rnncells_migrate.carry_rules import mark_references, rewrite_carries
from rnncells_migrate.changes import Changes, Note
from rnncells_migrate.constructors import (
    mark_doubtful,
    rename_conv_lstm,
    rewrite_constructors,
)
from rnncells_migrate.hand_written import note_hand_written
from rnncells_migrate.imports import rewrite_imports
from rnncells_migrate.layers import rewrite_layers
from rnncells_migrate.own_cells import rewrite_own_cells
from rnncells_migrate.tree import MARK, PROVIDERS
from rnncells_migrate.widths import Widths

# A file without these words uses no recurrent cell of Flax, and is not parsed.
CELLS = re.compile(r"initialize_carry|LSTMCell|GRUCell|ConvLSTM|\bRNN|legacy")
LIBRARY = re.compile(r"flax|legacy")
MARKS = re.compile(rf"\s*{re.escape(MARK)}(RC\d\d): (.*)")
RULES = (
    *(rewrite_constructors, rename_conv_lstm, rewrite_carries, mark_references),
    *(rewrite_layers, rewrite_own_cells, mark_doubtful, rewrite_imports),
    note_hand_written,
)


class Command(VisitorBasedCodemodCommand):
    DESCRIPTION = "Rewrite recurrent cells of Flax <= 0.6.11 for today's Flax."
    METADATA_DEPENDENCIES = PROVIDERS
    changes: Changes

    def visit_Module(self, node: cst.Module) -> None:
        program = Widths(node, self.get_metadata)
        self.changes = Changes(program)
        for rule in RULES:
            rule(program, self.changes)

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        updated = super().on_leave(original_node, updated_node)
        return self.changes.changed(original_node, updated)


def rewrite(code: str) -> tuple[str, list[Note], Counter[str]]:
    """Returns code for today's Flax, notes about the old lines, and counts of rules."""
    if not (CELLS.search(code) and LIBRARY.search(code)):
        return code, [], Counter()
    command = Command(CodemodContext())
    new = command.transform_module(cst.parse_module(code)).code
    return new, command.changes.notes, command.changes.counts


def marks(code: str) -> list[Note]:
    """Returns the marks in code."""
    lines = enumerate(code.splitlines(), 1)
    matches = ((number, MARKS.match(line)) for number, line in lines)
    return [Note(number, match[1], match[2]) for number, match in matches if match]
