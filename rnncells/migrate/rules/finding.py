"""The numbered rules of the codemod, and what a rule reports about one place."""

import ast
from dataclasses import dataclass, field

from rnncells.migrate.code.source import Edit

RULES = {
    "RC01": "construct a cell with `features`",
    "RC02": "create a carry with an instance, not with the class",
    "RC03": "create a carry from a shape, not from `batch_dims` and `size`",
    "RC04": "pass the size to the cell, not to `RNN`",
    "RC05": "rename `ConvLSTM` to `ConvLSTMCell`",
    "RC06": "make the `initialize_carry` of your own cell an instance method",
    "RC09": "import recurrent names from their current module",
    "RC12": "pass no size to `RNN` if its cell has `features`",
    "RC13": "pass `parent=None` to a cell that only creates a carry",
}
# Rules that never edit code.
ONLY_MARKED = {"RC12", "RC13"}
# Edits could break the quotes of an f-string, and Python 3.11 gives no positions in it.
IN_STRING = "the code is inside an f-string: move it out of the string"


@dataclass(frozen=True)
class Finding:
    """What a rule reports about one place in a file.

    Attributes:
      rule: a key of `RULES`.
      node: the place.
      edits: the edits that rewrite the place; empty if a person must decide.
      why: the text of the mark; empty if the place is rewritten.
      needs: (rule, place) pairs that must be rewritten too, or these edits are wrong.
      of_class: the name of the user's cell class that RC06 rewrites, else empty.
    """

    rule: str
    node: ast.AST
    edits: list[Edit] = field(default_factory=list)
    why: str = ""
    needs: tuple[tuple[str, ast.AST], ...] = ()
    of_class: str = ""

    def __post_init__(self):
        # It may quote code of several lines, and a comment has one.
        object.__setattr__(self, "why", " ".join(self.why.split()))
