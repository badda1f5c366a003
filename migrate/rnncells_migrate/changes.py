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
    "RC14": "let `RNN` run a cell over time",
}
RC09 = f"{MARK}RC09"


class Note(NamedTuple):
    """A mark in a file, or something about a line that is only printed."""

    line: int
    rule: str
    text: str


class Changes:
    """The changes of one module."""

    def __init__(self, tree: Tree):
        self.tree = tree
        # Functions that change a node, in their order, and texts above statements.
        self.edits: dict[cst.CSTNode, list[Callable[[Any], Any]]] = {}
        self.marks: dict[cst.CSTNode, dict[str, None]] = {}
        # Whether the marks of RC09 of an earlier run go.
        self.unmarked = False
        # What is only printed, and the number of rewritten places of each rule.
        self.notes: list[Note] = []
        self.counts: Counter[str] = Counter()

    def edit(
        self, rule: str, node: cst.CSTNode, function: Callable, *args: Any
    ) -> None:
        """Replaces a node by `function(node, *args)`; marks it in an f-string."""
        if self.tree.nearest(node, cst.FormattedString):
            self.mark(rule, node, "the code is inside an f-string: move it out of it")
            return
        self.edits.setdefault(node, []).append(lambda node: function(node, *args))
        self.counts[rule] += 1

    def mark(self, rule: str, node: cst.CSTNode, text: str) -> None:
        marks = self.marks.setdefault(self.tree.statement(node), {})
        marks[f"{rule}: {text}"] = None

    def note(self, rule: str, node: cst.CSTNode, text: str) -> None:
        self.notes.append(Note(self.tree.start(node)[0], rule, text))

    def changed(self, original: cst.CSTNode, updated: Any) -> Any:
        """Returns what a node becomes after its children were changed."""
        for function in self.edits.get(original, ()):
            updated = function(updated)
        # Comments above the first statement are those of the module.
        field = "header" if isinstance(original, cst.Module) else "leading_lines"
        if self.unmarked and hasattr(updated, field):
            lines = [(line, line.comment) for line in getattr(updated, field)]
            kept = [n for n, c in lines if not (c and c.value.startswith(RC09))]
            updated = updated.with_changes(**{field: kept})
        if original in self.marks:
            comments = [cst.Comment(MARK + text) for text in self.marks[original]]
            lines = [cst.EmptyLine(comment=comment) for comment in comments]
            lines = [*updated.leading_lines, *lines]
            updated = updated.with_changes(leading_lines=lines)
        return updated
