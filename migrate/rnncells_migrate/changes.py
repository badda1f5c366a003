"""What the rules collect: edits of nodes, marks above statements, and notes."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import libcst as cst

from rnncells_migrate.tree import MARK, Tree

RULES = {
    "RC01": "construct a cell with `features`",
    "RC02": "create a carry with an instance, not with the class",
    "RC03": "create a carry from a shape, not from `batch_dims` and `size`",
    "RC04": "pass the size to the cell, not to `RNN`",
    "RC05": "rename `ConvLSTM` to `ConvLSTMCell`",
    "RC06": "make the `initialize_carry` of your own cell an instance method",
    "RC09": "import `flax.linen` in place of the shim",
    "RC12": "pass no size to `RNN` if its cell has `features`",
    "RC13": "pass `parent=None` to a cell that only creates a carry",
    "RC14": "let `RNN` run a cell over time",
}
# Rules that only print a note: the code runs on today's Flax.
NOTED = ("RC12", "RC13", "RC14")
IN_STRING = "the code is inside an f-string: move it out of the string"

Edit = Callable[[Any], Any]


class Note(NamedTuple):
    """Something about one line that is printed, and not written into the file."""

    line: int
    rule: str
    text: str


class Changes:
    """The changes of one module.

    Attributes:
      edits: functions that change a node, in their order.
      marks: the marks above each statement.
      unmarked: statements that lose the mark of an earlier run.
      notes: the notes.
      counts: the number of rewritten places of each rule.
    """

    def __init__(self, tree: Tree):
        self.tree = tree
        self.edits: dict[cst.CSTNode, list[Edit]] = {}
        self.marks: dict[cst.CSTNode, dict[str, None]] = {}
        self.unmarked: set[cst.CSTNode] = set()
        self.notes: list[Note] = []
        self.counts: Counter[str] = Counter()

    def edit(self, rule: str, node: cst.CSTNode, function: Edit) -> None:
        """Changes a node, or marks its statement if it stands in an f-string."""
        if self.tree.is_in_string(node):
            self.mark(rule, node, IN_STRING)
            return
        self.edits.setdefault(node, []).append(function)
        self.counts[rule] += 1

    def mark(self, rule: str, node: cst.CSTNode, text: str) -> None:
        marks = self.marks.setdefault(self.tree.statement(node), {})
        marks[f"{rule}: {text}"] = None

    def note(self, rule: str, node: cst.CSTNode, text: str) -> None:
        self.notes.append(Note(self.tree.start(node)[0], rule, text))

    def changed(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """Returns what a node becomes after its children were changed."""
        for function in self.edits.get(original, ()):
            updated = function(updated)
        if original in self.marks:
            comments = [
                cst.EmptyLine(comment=cst.Comment(MARK + text))
                for text in self.marks[original]
            ]
            lines = [*updated.leading_lines, *comments]
            updated = updated.with_changes(leading_lines=lines)
        if original in self.unmarked:
            updated = without_marks(updated, "leading_lines")
        if self.unmarked and isinstance(updated, cst.Module):
            # Comments above the first statement are those of the module.
            updated = without_marks(updated, "header")
        return updated


def without_marks(node: cst.CSTNode, field: str) -> cst.CSTNode:
    """Returns a node without the marks of RC09 in some of its lines."""
    lines = [
        line
        for line in getattr(node, field)
        if line.comment is None or not line.comment.value.startswith(f"{MARK}RC09")
    ]
    return node.with_changes(**{field: lines})
