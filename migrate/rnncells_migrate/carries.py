"""Calls of `initialize_carry` with the arguments of Flax <= 0.6.11."""

from dataclasses import dataclass

import libcst as cst

from rnncells_migrate.names import last_name

OLD_ARGUMENTS = ("rng", "batch_dims", "size", "init_fn")
ONLY_OLD = {"batch_dims", "size", "init_fn"}
NAME = "initialize_carry"
PURE = (
    *(cst.Name, cst.Attribute, cst.Integer, cst.Subscript, cst.Index, cst.Tuple),
    *(cst.BinaryOperation, cst.UnaryOperation, cst.SimpleString, cst.Element),
    *(cst.SubscriptElement, cst.LeftSquareBracket, cst.RightSquareBracket),
    *(cst.LeftParen, cst.RightParen, cst.Comma, cst.Dot, cst.BaseParenthesizableWhitespace),
    *(cst.BaseBinaryOp, cst.BaseUnaryOp, cst.TrailingWhitespace, cst.Newline),
    *(cst.Comment, cst.EmptyLine),
)


@dataclass(frozen=True, eq=False)
class CarryCall:
    """A call of `initialize_carry` with old arguments.

    Attributes:
      call: the call.
      indices: of the old arguments among the arguments.
    """

    call: cst.Call
    indices: dict[str, int]

    @property
    def receiver(self) -> cst.BaseExpression:
        return self.call.func.value

    @property
    def batch(self) -> cst.BaseExpression | None:
        return self._argument("batch_dims")

    @property
    def size(self) -> cst.BaseExpression | None:
        return self._argument("size")

    @property
    def init_fn(self) -> cst.BaseExpression | None:
        return self._argument("init_fn")

    def _argument(self, name: str) -> cst.BaseExpression | None:
        return self.call.args[self.indices[name]].value if name in self.indices else None

    @property
    def is_sure(self) -> bool:
        """Whether the arguments can only be those of a cell."""
        if self.batch is None or self.size is None:
            return False
        is_named = self.call.args[self.indices["batch_dims"]].keyword is not None
        shape = self.batch
        if isinstance(shape, cst.Subscript):
            shape = shape.value if _is_slice(shape) else None
        is_shape = isinstance(shape, cst.Attribute) and last_name(shape) == "shape"
        named = {"batch_dims", "batch_shape", "dims"} & {last_name(self.batch)}
        is_tuple = isinstance(self.batch, cst.Tuple) or is_shape or bool(named)
        return is_pure(self.size) and (is_named or is_tuple)


def carry_call(node: cst.CSTNode) -> CarryCall | None:
    """Returns a call of `initialize_carry` if its arguments are old, else None."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    if node.func.attr.value != NAME:
        return None
    indices: dict[str, int] = {}
    for index, arg in enumerate(node.args):
        if arg.star:
            return CarryCall(node, {})
        name = arg.keyword.value if arg.keyword is not None else ""
        if not name and index < len(OLD_ARGUMENTS):
            name = OLD_ARGUMENTS[index]
        indices[name] = index
    is_old = ONLY_OLD & {arg.keyword.value for arg in node.args if arg.keyword}
    if len(node.args) < 3 and not is_old:
        return None
    if not set(indices) <= set(OLD_ARGUMENTS) or len(indices) < len(node.args):
        return CarryCall(node, {}) if is_old else None
    return CarryCall(node, indices)


def is_pure(node: cst.CSTNode) -> bool:
    """Returns whether an expression may be evaluated twice."""
    return isinstance(node, PURE) and all(is_pure(child) for child in node.children)


def _is_slice(node: cst.Subscript) -> bool:
    return any(isinstance(part.slice, cst.Slice) for part in node.slice)
