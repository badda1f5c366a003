"""Statements and expressions that bind names to values."""

import ast
from collections.abc import Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)
DISPLAYS = (ast.Tuple, ast.List)


def bindings(node: ast.AST) -> Iterator[tuple[ast.AST, str, dict]]:
    """Yields (a node in the scope of the name, the name, fields of its `Binding`)."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            name = alias.asname or top
            yield node, name, {"imported": alias.name if alias.asname else top}
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            module = f"{node.module}." if node.module else ""
            full = f"{'.' * node.level}{module}{alias.name}"
            yield node, alias.asname or alias.name, {"imported": full}
    elif isinstance(node, FUNCTIONS):
        body = node.body if isinstance(node, ast.Lambda) else node.body[0]
        defaults = defaults_of(node.args)
        for arg in ast.walk(node.args):
            if isinstance(arg, ast.arg):
                default, annotation = defaults.get(arg.arg), arg.annotation
                known = {"default": default, "annotation": annotation}
                yield body, arg.arg, {"is_parameter": True, **known}
        if not isinstance(node, ast.Lambda):
            yield node, node.name, {}
    elif isinstance(node, ast.ClassDef):
        yield node, node.name, {}
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from ((node, *bound) for bound in _unpacked(target, node.value))
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        if isinstance(node.target, ast.Name):
            yield node, node.target.id, {"value": node.value}
    elif isinstance(node, ast.AugAssign):
        yield from ((node, name, {}) for name in stored(node.target))
    elif isinstance(node, LOOPS):
        for name in stored(node.target):
            given = iterated(node.iter, node.target, name)
            yield node.target, name, {"element_of": given}
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        names = stored(node.optional_vars)
        yield from ((node.optional_vars, name, {}) for name in names)
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node, node.name, {}
    elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
        yield node, node.name, {}
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node, node.rest, {}


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, dict]]:
    """Yields the names in an assignment's target with the fields of their bindings."""
    if isinstance(target, ast.Name):
        yield target.id, {"value": value}
    elif (
        isinstance(target, DISPLAYS)
        and isinstance(value, DISPLAYS)
        and len(target.elts) == len(value.elts)
        and not any(isinstance(e, ast.Starred) for e in target.elts + value.elts)
    ):
        for inner, part in zip(target.elts, value.elts, strict=True):
            yield from _unpacked(inner, part)
    else:
        parts = target.elts if isinstance(target, DISPLAYS) else []
        for name in stored(target):
            # `c, h = carry` binds `h` to part 1 of the value.
            at = [k for k, part in enumerate(parts) if getattr(part, "id", "") == name]
            yield name, {"part_of": (value, at[0])} if len(at) == 1 else {}


def iterated(given: ast.expr, target: ast.expr, name: str) -> ast.expr | None:
    """Returns the container whose elements a loop binds to a name of its target.

    Sees through `enumerate`, `zip`, `reversed`, slices, `.values()` and `.items()`.
    """
    function = getattr(given, "func", None)
    parts = target.elts if isinstance(target, DISPLAYS) else []
    if isinstance(function, ast.Attribute) and function.attr in ("values", "items"):
        given = function.value
        if function.attr == "items":
            target = parts[1] if len(parts) == 2 else None
    elif getattr(function, "id", "") == "enumerate" and given.args:
        return iterated(given.args[0], parts[1], name) if len(parts) == 2 else None
    elif getattr(function, "id", "") == "reversed" and given.args:
        return iterated(given.args[0], target, name)
    elif getattr(function, "id", "") == "zip":
        pairs = zip(given.args, parts, strict=False)
        found = (iterated(of, part, name) for of, part in pairs)
        return next(filter(None, found), None)
    elif isinstance(given, ast.Subscript) and isinstance(given.slice, ast.Slice):
        given = given.value
    return given if getattr(target, "id", None) == name else None


def defaults_of(args: ast.arguments) -> dict[str, ast.expr | None]:
    """Returns the defaults of parameters by their names."""
    plain = [*args.posonlyargs, *args.args]
    with_default = plain[len(plain) - len(args.defaults) :]
    pairs = [*zip(with_default, args.defaults, strict=True)]
    pairs += zip(args.kwonlyargs, args.kw_defaults, strict=True)
    return {arg.arg: default for arg, default in pairs}


def stored(target: ast.AST) -> list[str]:
    """Returns the names that an assignment's target binds."""
    return [
        node.id
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
