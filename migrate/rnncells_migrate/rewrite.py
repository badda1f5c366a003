"""The rewrite of one module: a survey by all rules, then one pass that applies it."""

import re
from collections.abc import Mapping
from typing import NamedTuple

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
CELLS = re.compile(r"initialize_carry|LSTMCell|GRUCell|ConvLSTM|RNN|rnncells")
LIBRARY = re.compile(r"flax|rnncells")
MARKS = re.compile(rf"\s*{re.escape(MARK)}(RC\d\d): (.*)")


class Command(VisitorBasedCodemodCommand):
    """Rewrites recurrent cells of Flax <= 0.6.11 for today's Flax."""

    DESCRIPTION = "Rewrite recurrent cells of Flax <= 0.6.11 for today's Flax."
    METADATA_DEPENDENCIES = PROVIDERS
    changes: Changes

    def visit_Module(self, node: cst.Module) -> None:
        self.changes = survey(Widths(node, self.get_metadata))

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode):
        updated = super().on_leave(original_node, updated_node)
        return self.changes.changed(original_node, updated)


def survey(program: Widths) -> Changes:
    """Returns the changes of a module by all rules."""
    changes = Changes(program)
    rewrite_constructors(program, changes)
    rename_conv_lstm(program, changes)
    rewrite_carries(program, changes)
    mark_references(program, changes)
    rewrite_layers(program, changes)
    rewrite_own_cells(program, changes)
    if changes.edits or changes.marks:
        mark_doubtful(program, changes)
    rewrite_imports(program, changes)
    note_hand_written(program, changes)
    return changes


class Rewritten(NamedTuple):
    """New code, notes about the old code, and the rewritten places of each rule."""

    code: str
    notes: list[Note] = []
    counts: Mapping[str, int] = {}


def rewrite(code: str) -> Rewritten:
    """Returns code for today's Flax.

    Raises:
      libcst.ParserSyntaxError: the code is not Python.
    """
    if not (CELLS.search(code) and LIBRARY.search(code)):
        return Rewritten(code)
    command = Command(CodemodContext())
    new = command.transform_module(cst.parse_module(code)).code
    return Rewritten(new, command.changes.notes, command.changes.counts)


def marks(code: str) -> list[Note]:
    """Returns the marks in code."""
    lines = enumerate(code.splitlines(), 1)
    found = ((number, MARKS.match(line)) for number, line in lines)
    return [Note(number, match[1], match[2]) for number, match in found if match]
