"""Statements and expressions that give values to names."""

import ast
from collections.abc import Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def bindings(node: ast.AST) -> Iterator[tuple[ast.AST, str, dict]]:
    """Yields a node whose scope gets a name, the name, and what is known of it."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            name = alias.asname or top
            yield node, name, {"imported": alias.name if alias.asname else top}
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            full = f"{'.' * node.level}{node.module or ''}.{alias.name}"
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
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from ((node.target, name, {}) for name in stored(node.target))
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
    """Yields the names in a target, and what is known of the values that they get."""
    displays = ast.Tuple | ast.List
    if isinstance(target, ast.Name):
        yield target.id, {"value": value}
    elif (
        isinstance(target, displays)
        and isinstance(value, displays)
        and len(target.elts) == len(value.elts)
        and not any(isinstance(e, ast.Starred) for e in target.elts + value.elts)
    ):
        for inner, part in zip(target.elts, value.elts, strict=True):
            yield from _unpacked(inner, part)
    else:
        yield from ((name, {}) for name in stored(target))


def defaults_of(args: ast.arguments) -> dict[str, ast.expr | None]:
    """Returns the defaults of parameters by their names."""
    plain = [*args.posonlyargs, *args.args]
    behind = plain[len(plain) - len(args.defaults) :]
    pairs = [*zip(behind, args.defaults, strict=True)]
    pairs += zip(args.kwonlyargs, args.kw_defaults, strict=True)
    return {arg.arg: default for arg, default in pairs}


def stored(target: ast.AST) -> list[str]:
    """Returns the names in the target of an assignment."""
    return [
        node.id
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
