"""Changes of calls that keep the spaces, commas and comments around their arguments."""

import re
from typing import Any

import libcst as cst

from rnncells_migrate.tree import bare

COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
NO_SPACE = cst.SimpleWhitespace("")
EQUAL = cst.AssignEqual(whitespace_before=NO_SPACE, whitespace_after=NO_SPACE)
LOOSE = (cst.BooleanOperation, cst.Comparison, cst.IfExp, cst.Lambda)


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """Returns an argument `name=value`."""
    return cst.Arg(value, keyword=cst.Name(name), equal=EQUAL)


def copy(node: cst.BaseExpression) -> cst.BaseExpression:
    """Returns a copy of an expression, without the parentheses around it."""
    return bare(node).deep_clone()


def with_features(call: cst.Call, width: cst.BaseExpression, is_own: bool) -> cst.Call:
    """Returns the call of a class with `features`: first, or last of an own cell."""
    args = list(call.args)
    if not is_own:
        comma = COMMA if args else cst.MaybeSentinel.DEFAULT
        return call.with_changes(args=[cst.Arg(width, comma=comma), *args])
    if args and not isinstance(args[-1].comma, cst.Comma):
        args[-1] = args[-1].with_changes(comma=COMMA)
    return call.with_changes(args=[*args, keyword("features", width)])


def without_argument(call: cst.Call, index: int) -> cst.Call:
    """Returns a call without one of its arguments."""
    args = list(call.args)
    gone = args.pop(index)
    if index and index == len(args):
        if not comments(args[-1].comma) or comments(gone.comma):
            args[-1] = _ending_like(args[-1], gone)
    return call.with_changes(args=args)


def _ending_like(arg: cst.Arg, gone: cst.Arg) -> cst.Arg:
    """Returns an argument with the comma and space of one that stood behind it."""
    space = gone.whitespace_after_arg
    return arg.with_changes(comma=gone.comma, whitespace_after_arg=space)


def comments(node: Any) -> list[str]:
    """Returns the comments in a node."""
    is_node = isinstance(node, cst.CSTNode)
    return re.findall("#.*", cst.Module([]).code_for_node(node)) if is_node else []


def constructed(cell: cst.BaseExpression, args: list[cst.Arg]) -> cst.Call:
    """Returns `Cell(..., parent=None)`, which only creates a carry."""
    args = [arg.with_changes(comma=COMMA) for arg in args]
    return cst.Call(cell, [*args, keyword("parent", cst.Name("None"))])


def with_shape(call: cst.Call, indices: dict[str, int]) -> cst.Call:
    """Returns `initialize_carry` with one shape for its old arguments."""
    batch, size, init_fn = (indices.get(n) for n in ("batch_dims", "size", "init_fn"))
    if init_fn is not None:
        call = without_argument(call, init_fn)
        batch, size = batch - (batch > init_fn), size - (size > init_fn)
    args = list(call.args)
    old, last = args[batch], args[size]
    is_next = size == batch + 1
    shape = _joined(old.value, last.value, old.comma if is_next else COMMA)
    name = old.keyword and cst.Name("input_shape")
    args[batch] = old.with_changes(value=shape, keyword=name)
    if is_next:
        # The comma between both, with its comment, now stands in the shape.
        args[batch : size + 1] = [_ending_like(args[batch], last)]
        return call.with_changes(args=args)
    return without_argument(call.with_changes(args=args), size)


def _joined(batch: Any, size: Any, comma: cst.Comma) -> cst.Tuple:
    """Returns the tuple of `batch_dims` and one or several sizes.

    The comma stood behind `batch_dims`, and may have a comment.
    """
    if isinstance(batch, cst.Tuple) and batch.lpar:
        shape, first = batch, list(batch.elements)
    else:
        shape = cst.parse_expression("()")
        if isinstance(batch, LOOSE) and not batch.lpar:
            batch = batch.with_changes(lpar=shape.lpar, rpar=shape.rpar)
        first = [cst.StarredElement(batch)]
    if first:
        comma = comma if comments(comma) else COMMA
        first[-1] = first[-1].with_changes(comma=comma)
    elif comments(comma):
        lpar = cst.LeftParen(whitespace_after=comma.whitespace_after)
        shape = shape.with_changes(lpar=[lpar])
    is_several = isinstance(size, cst.Tuple)
    last = list(size.elements) if is_several else [cst.Element(copy(size))]
    is_single = len(first) + len(last) == 1
    end = cst.Comma() if is_single else cst.MaybeSentinel.DEFAULT
    elements = [*first, *last[:-1], last[-1].with_changes(comma=end)]
    return shape.with_changes(elements=elements)
