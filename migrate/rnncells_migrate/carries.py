"""Calls of `initialize_carry` with the arguments of Flax <= 0.6.11."""

from typing import Any, NamedTuple

import libcst as cst

from rnncells_migrate.tree import walk

NAME = "initialize_carry"
OLD_ARGUMENTS = ("rng", "batch_dims", "size", "init_fn")
ONLY_OLD = {"batch_dims", "size", "init_fn"}
IMPURE = (cst.Call, cst.Await, cst.Yield, cst.NamedExpr)


class CarryCall(NamedTuple):
    """A call of `initialize_carry`, and where its old arguments stand."""

    call: cst.Call
    indices: dict[str, int]

    def argument(self, name: str) -> Any:
        if name not in self.indices:
            return None
        return self.call.args[self.indices[name]].value

    @property
    def receiver(self) -> Any:
        return self.call.func.value

    @property
    def size(self) -> Any:
        return self.argument("size")


def carry_call(node: cst.CSTNode | None) -> CarryCall | None:
    """Returns a call of `initialize_carry` if its arguments are old, else None."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    if node.func.attr.value != NAME:
        return None
    names = [
        arg.keyword.value if arg.keyword else (*OLD_ARGUMENTS, *node.args)[index]
        for index, arg in enumerate(node.args)
    ]
    keywords = {arg.keyword.value for arg in node.args if arg.keyword}
    if any(arg.star for arg in node.args):
        return CarryCall(node, {})
    if len(names) < 3 and not ONLY_OLD & keywords:
        return None
    is_old = len(set(names)) == len(names) and set(names) <= set(OLD_ARGUMENTS)
    return CarryCall(node, {n: i for i, n in enumerate(names)}) if is_old else None


def is_pure(node: cst.CSTNode) -> bool:
    """Returns whether an expression may be evaluated twice."""
    return not any(isinstance(part, IMPURE) for part in walk(node))
