"""Changes of calls that keep the spaces, commas and comments around their arguments."""

import libcst as cst

from rnncells_migrate.tree import bare

SPACE = cst.SimpleWhitespace(" ")
COMMA = cst.Comma(whitespace_after=SPACE)
NO_SPACE = cst.SimpleWhitespace("")
EQUAL = cst.AssignEqual(whitespace_before=NO_SPACE, whitespace_after=NO_SPACE)


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """Returns an argument `name=value`."""
    return cst.Arg(value, keyword=cst.Name(name), equal=EQUAL)


def copy(node: cst.BaseExpression) -> cst.BaseExpression:
    """Returns a copy of an expression, without the parentheses around it."""
    return bare(node).deep_clone()


def with_features(
    call: cst.Call, features: cst.BaseExpression, by_keyword: bool
) -> cst.Call:
    """Returns the call of a class with `features`, first or as the last keyword."""
    if not by_keyword:
        first = cst.Arg(features, comma=COMMA if call.args else cst.MaybeSentinel.DEFAULT)
        return call.with_changes(args=[first, *call.args])
    args = list(call.args)
    if args and not isinstance(args[-1].comma, cst.Comma):
        args[-1] = args[-1].with_changes(comma=COMMA)
    return call.with_changes(args=[*args, keyword("features", features)])


def without_argument(call: cst.Call, index: int) -> cst.Call:
    """Returns a call without one of its arguments."""
    args = list(call.args)
    gone = args.pop(index)
    if index and index == len(args):
        args[-1] = _ending_like(args[-1], gone)
    return call.with_changes(args=args)


def _ending_like(arg: cst.Arg, gone: cst.Arg) -> cst.Arg:
    """Returns an argument with the comma and space of one that stood behind it."""
    if has_comment(arg.comma) and not has_comment(gone.comma):
        return arg
    return arg.with_changes(
        comma=gone.comma, whitespace_after_arg=gone.whitespace_after_arg
    )


def has_comment(node: cst.CSTNode | cst.MaybeSentinel) -> bool:
    if not isinstance(node, cst.CSTNode):
        return False
    return "#" in cst.Module([]).code_for_node(node)


def constructed(
    receiver: cst.BaseExpression, args: list[cst.Arg]
) -> cst.BaseExpression:
    """Returns `Class(..., parent=None)`, a cell that only creates a carry."""
    args = [*args, keyword("parent", cst.Name("None"))]
    args = [arg.with_changes(comma=COMMA) for arg in args[:-1]] + args[-1:]
    return cst.Call(receiver, args)


def with_shape(call: cst.Call, batch: int, size: int, init_fn: int | None) -> cst.Call:
    """Returns `initialize_carry` with one shape for its `batch_dims` and `size`.

    Args:
      call: with the old arguments.
      batch: index of the argument `batch_dims`.
      size: that of `size`.
      init_fn: that of `init_fn`, which is removed.
    """
    if init_fn is not None:
        call = without_argument(call, init_fn)
        batch, size = batch - (batch > init_fn), size - (size > init_fn)
    args = list(call.args)
    old, last = args[batch], args[size]
    is_next = size == batch + 1
    shape = joined(old.value, last.value, old.comma if is_next else COMMA)
    name = old.keyword and cst.Name("input_shape")
    args[batch] = old.with_changes(value=shape, keyword=name)
    if not is_next:
        return without_argument(call.with_changes(args=args), size)
    # The comma between both arguments, with its comment, now stands in the shape.
    args[batch] = args[batch].with_changes(
        comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
    )
    del args[size]
    return call.with_changes(args=args)


def joined(
    batch: cst.BaseExpression, size: cst.BaseExpression, comma: cst.Comma
) -> cst.Tuple:
    """Returns the tuple of the axes of a batch and a size.

    Args:
      batch: `batch_dims`.
      size: one number, or a tuple of several.
      comma: that behind `batch`, which may have a comment.
    """
    if isinstance(batch, cst.Tuple) and batch.lpar:
        shape, first = batch, list(batch.elements)
    else:
        parens = [cst.LeftParen()], [cst.RightParen()]
        shape = cst.Tuple([], lpar=parens[0], rpar=parens[1])
        first = [cst.StarredElement(_operand(batch))]
    if first:
        comma = comma if has_comment(comma) else COMMA
        first[-1] = first[-1].with_changes(comma=comma)
    elif has_comment(comma):
        lpar = cst.LeftParen(whitespace_after=comma.whitespace_after)
        shape = shape.with_changes(lpar=[lpar])
    is_several = isinstance(size, cst.Tuple)
    last = list(size.elements) if is_several else [cst.Element(copy(size))]
    is_single = len(first) + len(last) == 1
    end = cst.Comma() if is_single else cst.MaybeSentinel.DEFAULT
    last[-1] = last[-1].with_changes(comma=end)
    return shape.with_changes(elements=[*first, *last])


def _operand(batch: cst.BaseExpression) -> cst.BaseExpression:
    """Returns an expression that may stand behind a star."""
    loose = cst.BooleanOperation | cst.Comparison | cst.IfExp | cst.Lambda | cst.UnaryOperation
    if isinstance(batch, loose) and not batch.lpar:
        return batch.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return batch
