"""The rewrite of one module: a survey by all rules, then one pass that applies it."""

import re
from dataclasses import dataclass, field

import libcst as cst
from libcst.codemod import CodemodContext, VisitorBasedCodemodCommand

from rnncells_migrate.carry_rules import CarryRules
from rnncells_migrate.cells import Cells
from rnncells_migrate.changes import Changes, Note
from rnncells_migrate.constructors import (
    mark_doubtful,
    rename_conv_lstm,
    rewrite_constructors,
)
from rnncells_migrate.hand_written import note_hand_written
from rnncells_migrate.imports import Imports
from rnncells_migrate.layers import rewrite_layers
from rnncells_migrate.names import Names
from rnncells_migrate.own_cells import OwnCells
from rnncells_migrate.tree import MARK, PROVIDERS, Tree
from rnncells_migrate.widths import Widths

# A file without these words uses no recurrent cell of Flax, and is not parsed.
CELLS = re.compile(
    r"initialize_carry|LSTMCell|GRUCell|ConvLSTM|RNNCellBase|\bRNN\b|rnncells"
)
LIBRARY = re.compile(r"flax|rnncells")


class Command(VisitorBasedCodemodCommand):
    """Rewrites recurrent cells of Flax <= 0.6.11 for today's Flax."""

    DESCRIPTION = "Rewrite recurrent cells of Flax <= 0.6.11 for today's Flax."
    METADATA_DEPENDENCIES = PROVIDERS

    def __init__(self, context: CodemodContext):
        super().__init__(context)
        self.changes: Changes | None = None

    def visit_Module(self, node: cst.Module) -> None:
        self.changes = survey(Tree(node, self.get_metadata))

    def on_leave(
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode:
        updated = super().on_leave(original_node, updated_node)
        return self.changes.changed(original_node, updated)


def survey(tree: Tree) -> Changes:
    """Returns the changes of a module by all rules."""
    changes, names = Changes(tree), Names(tree)
    own_cells, imports = OwnCells(tree, names), Imports(tree, names)
    cells = Cells(tree, names, own_cells.plain)
    widths = Widths(tree, names, cells)
    rewrite_constructors(tree, cells, widths, changes)
    rename_conv_lstm(tree, cells, changes)
    CarryRules(tree, names, cells, widths, changes).rewrite()
    rewrite_layers(tree, cells, widths, changes)
    own_cells.rewrite(changes)
    if changes.edits or changes.marks:
        mark_doubtful(tree, cells, changes)
    imports.rewrite(changes)
    note_hand_written(tree, names, cells, changes)
    return changes


@dataclass(frozen=True)
class Rewritten:
    """What code becomes.

    Attributes:
      code: the new code.
      notes: what is printed about lines of the old code.
      counts: the number of rewritten places of each rule.
    """

    code: str
    notes: tuple[Note, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


def rewrite(code: str) -> Rewritten:
    """Returns code for today's Flax.

    Raises:
      libcst.ParserSyntaxError: the code is not Python.
    """
    if not (CELLS.search(code) and LIBRARY.search(code)):
        return Rewritten(code)
    command = Command(CodemodContext())
    new = command.transform_module(cst.parse_module(code)).code
    changes = command.changes
    return Rewritten(new, tuple(changes.notes), dict(changes.counts))


def marks(code: str) -> list[Note]:
    """Returns the marks in code."""
    mark = re.compile(rf"\s*{re.escape(MARK)}(RC\d\d): (.*)")
    found = ((n, mark.match(line)) for n, line in enumerate(code.splitlines(), 1))
    return [Note(n, match[1], match[2]) for n, match in found if match]
