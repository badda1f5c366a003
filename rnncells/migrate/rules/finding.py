"""The numbered rules of the codemod, and what a rule reports about one place."""

import ast
from dataclasses import dataclass, field

from rnncells.migrate.code.source import Edit

RULES = {
    "RC01": "a cell is made with `features`",
    "RC02": "a carry is made by an instance, not by the class",
    "RC03": "a carry is made from a shape, not from `batch_dims` and `size`",
    "RC04": "the size is an argument of the cell, not of `RNN`",
    "RC05": "`ConvLSTM` is `ConvLSTMCell`",
    "RC06": "the `initialize_carry` of your own cell is an instance method",
    "RC09": "recurrent names are imported from their current module",
    "RC12": "`RNN(cell, size)` of a cell with `features` sets `time_major`",
    "RC13": "a cell that only makes a carry has `parent=None`",
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
