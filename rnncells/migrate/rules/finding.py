"""What is looked for in a file, by numbered rules, and what they answer."""

import ast
from dataclasses import dataclass, field

from rnncells.migrate.code.source import Edit

RULES = {
    "RC01": "a cell is made with `features`",
    "RC02": "a carry is made by an instance, not by the class",
    "RC03": "a carry is made from a shape, not from `batch_dims` and `size`",
    "RC04": "the size belongs to the cell, not to `RNN`",
    "RC05": "`ConvLSTM` is `ConvLSTMCell`",
    "RC06": "a cell's own `initialize_carry` is a method of the instance",
    "RC07": "`segmentation_mask` is `seq_lengths`",
    "RC08": "private names of Flax are gone",
    "RC09": "recurrent names are imported from where they are",
    "RC11": "a carry needs a shape with features, not the batch alone",
    "RC12": "`RNN(cell, size)` of a cell with `features` sets `time_major`",
    "RC13": "a cell that only makes a carry has `parent=None`",
}
# Those of them that edit nothing.
ONLY_MARKED = {"RC08", "RC11", "RC12", "RC13"}
# What stands in a comment above a line that a person has to look at, before the rule.
MARK = "TODO(rnncells)"
# Its text has quotes that others must not meet, and no places before Python 3.12.
IN_STRING = "it stands in an f-string: take it out of there"


@dataclass(frozen=True)
class Finding:
    """What one rule says of one place.

    Attributes:
      rule: a name in `RULES`.
      node: the place.
      edits: what makes it new; none where a person has to look.
      why: the reason that nothing is edited.
      needs: rules, and where they edit: without that these edits are wrong.
      of_class: the class of cells that becomes another; empty: none.
    """

    rule: str
    node: ast.AST
    edits: list[Edit] = field(default_factory=list)
    why: str = ""
    needs: tuple[tuple[str, ast.AST], ...] = ()
    of_class: str = ""
