"""Users' own cell classes with an `initialize_carry` in the old form."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rnncells.migrate.code.bindings import stored
from rnncells.migrate.code.cells import FLAX, LINEN, PARTS, linen_name, unlifted
from rnncells.migrate.code.names import Names, last_name
from rnncells.migrate.code.source import Source

# Parameters of the rewritten method.
NEW = ("self", "input_shape")


@dataclass(frozen=True)
class OwnCell:
    """A cell class defined in the file whose `initialize_carry` takes no instance.

    Attributes:
      node: the class.
      method: the function `initialize_carry`, or the statement that assigns it.
      linen: the file's name for the module of its base, as `nn`, or "".
      why_not: why it cannot be rewritten; "" if it can.
    """

    node: ast.ClassDef
    method: ast.FunctionDef | ast.Assign | ast.AnnAssign
    linen: str
    why_not: str = ""

    @property
    def fields(self) -> dict[str, ast.AnnAssign]:
        return {
            statement.target.id: statement
            for statement in self.node.body
            if isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
        }

    @property
    def is_required(self) -> bool:
        """Whether its constructor has required arguments."""
        return any(field.value is None for field in self.fields.values())

    @property
    def feature_axes(self) -> list[ast.expr | None]:
        """The values of `num_feature_axes` or `num_feature_dims` in the class."""
        found = []
        for statement in self.node.body:
            names, value = [getattr(statement, "name", "")], statement
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                names = stored(statement)
            elif isinstance(statement, ast.FunctionDef):
                value = statement.body[-1]
            if {"num_feature_axes", "num_feature_dims"} & set(names):
                found.append(getattr(value, "value", None))
        return found


def own_cell(names: Names, node: ast.ClassDef) -> OwnCell | None:
    """Returns a class as `OwnCell` if it is a cell in the old form, else None."""
    bases = [base for base in node.bases if _is_cell(names, base, ())]
    found = names.scopes[node].names.get("initialize_carry", ())
    methods = [b.node for b in found if _has_no_instance(names, b.node)]
    if not bases or not methods:
        return None
    cell = OwnCell(node, methods[0], _linen(names, node, bases[0]))
    if len(found) > 1:
        why_not = "the class has several `initialize_carry`: keep one"
        return replace(cell, why_not=why_not)
    return replace(cell, why_not=next(_obstacles(names, cell), ""))


def _linen(names: Names, node: ast.ClassDef, base: ast.expr) -> str:
    """Returns the file's name for `flax.linen` at a class, or ""."""
    while isinstance(base, ast.Attribute):
        base = base.value
        if names.qualified(base) in LINEN:
            return names.source.text(base)
    for name, found in names.scopes[names.source.tree].names.items():
        is_linen = all(binding.imported in LINEN for binding in found)
        if is_linen and names.lookup(name, node) is found:
            return name
    return ""


def _is_cell(names: Names, base: ast.expr, seen: tuple[ast.AST, ...]) -> bool:
    """Returns whether a base is a cell class of Flax or derived from one."""
    if linen_name(names.qualified(base)) in ("RNNCellBase", *FLAX):
        return True
    found = names.only(names.value(base))
    node = None if found is None else found.node
    return (
        isinstance(node, ast.ClassDef)
        and node not in seen
        and any(_is_cell(names, inner, (*seen, node)) for inner in node.bases)
    )


def _has_no_instance(names: Names, method: ast.AST) -> bool:
    """Returns whether a method has the old form: called on a class, three arguments.

    It is static, a class method, or has no `self`. An instance method with the old
    arguments counts too.
    """
    function, made = method, set()
    if isinstance(method, ast.Assign | ast.AnnAssign):
        function = method.value
        if isinstance(function, ast.Call) and len(function.args) == 1:
            made, function = {last_name(function.func)}, function.args[0]
        function = names.value(function)
        found = names.only(function)
        if found is not None and not found.is_parameter:
            function = found.node
    made |= {last_name(d) for d in getattr(function, "decorator_list", ())}
    is_static = bool(made & {"staticmethod", "classmethod"})
    if not isinstance(function, ast.FunctionDef | ast.Lambda):
        return is_static
    args = function.args
    given = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    if not is_static:
        has_self = bool(given) and given[0].arg == "self"
        return len(given) > (3 + len(args.defaults) if has_self else 2)
    # A key and a shape are today's arguments.
    return len(given) - ("classmethod" in made) != 2 or args.vararg is not None


def _obstacles(names: Names, cell: OwnCell) -> Iterator[str]:
    """Yields why a class cannot be rewritten."""
    node, method = cell.node, cell.method
    if names.source.is_skipped(method) or names.source.is_skipped(node):
        yield "it is skipped"
    if [linen_name(names.qualified(base)) for base in node.bases] != ["RNNCellBase"]:
        yield (
            "the other bases of the class may have fields of the same names: rewrite "
            "it by hand"
        )
    if not cell.linen:
        yield "it needs `nn.nowrap`: write `import flax.linen as nn`"
    if method not in node.body or not _is_plain(method):
        yield (
            "it is not a plain `@staticmethod` (rng, batch_dims, size, init_fn): "
            "rewrite it"
        )
        return
    inside = names.source.tokens_between(*signature(names.source, method))
    if any(token.startswith("#") for _, _, token in inside):
        yield "comments stand between its arguments: move them"
    bound = {*cell.fields, *names.scopes[node].names}
    for name in ("features", "carry_init", "__init__", "__post_init__"):
        if name in bound:
            yield f"the class has its own `{name}`: rewrite it by hand"
    if any(getattr(axes, "value", None) != 1 for axes in cell.feature_axes) or not all(
        _is_number(names, use) for use in _reads(method, method.args.args[2].arg)
    ):
        yield (
            "`size` may be the shape of an image: rewrite `initialize_carry` by hand, "
            "and define `num_feature_axes`"
        )
    if not _is_tuple(names, method):
        yield "its batch may be a number or a list: annotate it as a `tuple`"
    for default in method.args.defaults:
        if any(_reads(default, name) for name in bound):
            yield "the default of `init_fn` is a name of the class: move that out"
    if any(arg.arg in NEW for arg in method.args.args) or any(
        _reads(method, name) for name in NEW
    ):
        yield "`self` or `input_shape` is another name in it: rename that"
    yield from _other_uses(names, cell)


def _is_plain(method: ast.AST) -> bool:
    if not isinstance(method, ast.FunctionDef):
        return False
    args = method.args
    made = [getattr(decorator, "id", "") for decorator in method.decorator_list]
    return (
        made == ["staticmethod"]
        and len(args.args) in (3, 4)
        and len(args.defaults) <= len(args.args) - 3
        and not (args.vararg or args.kwarg or args.kwonlyargs or args.posonlyargs)
    )


def signature(source: Source, method: ast.FunctionDef) -> tuple[int, int]:
    """Returns where the parameters of a method start and end, without a last comma."""
    start = end = source.start(method.args.args[0])
    depth = 0
    for _, stop, token in source.tokens_between(start, source.end(method)):
        depth += (token in "([{") - (token in ")]}")
        if depth < 0:
            break
        if not token.startswith("#") and not (depth == 0 and token == ","):
            end = stop
    return start, end


def _reads(node: ast.AST, name: str) -> list[ast.Name]:
    return [
        part
        for part in ast.walk(node)
        if isinstance(part, ast.Name)
        and part.id == name
        and isinstance(part.ctx, ast.Load)
    ]


def _is_number(names: Names, use: ast.Name) -> bool:
    """Returns whether a use of `size` requires one number, not a tuple."""
    parent = names.source.parents[use]
    if isinstance(parent, ast.keyword):
        parent = names.source.parents[parent]
    if isinstance(parent, ast.Call):
        function = parent.func
        if getattr(function, "attr", "") == "initialize_carry":
            return linen_name(names.qualified(function.value)) in PARTS
        return getattr(function, "id", "") in ("int", "float")
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add):
        other = parent.left if parent.right is use else parent.right
        return isinstance(other, ast.Constant)
    return isinstance(parent, ast.Tuple | ast.List | ast.BinOp | ast.Compare)


def _is_tuple(names: Names, method: ast.FunctionDef) -> bool:
    """Returns whether `batch_dims` is annotated or used as a tuple."""
    batch = method.args.args[1]
    annotation = batch.annotation
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    if last_name(annotation) in ("tuple", "Tuple"):
        return True
    found = names.scopes[method].names.get(batch.arg, [])
    uses = names.uses(batch.arg, found) if len(found) == 1 else []
    return bool(uses) and all(_is_of_tuple(names, use) for use in uses)


def _is_of_tuple(names: Names, use: ast.Name) -> bool:
    """Returns whether a use of `batch_dims` requires a tuple."""
    parent, is_keyword = names.source.parents[use], False
    if isinstance(parent, ast.keyword):
        parent, is_keyword = names.source.parents[parent], parent.arg == "batch_dims"
    if isinstance(parent, ast.Call):
        function = parent.func
        if getattr(function, "attr", "") == "initialize_carry":
            is_flax = linen_name(names.qualified(function.value)) in FLAX
            return is_flax and (is_keyword or parent.args[1:2] == [use])
        return getattr(function, "id", "") in ("tuple", "list", "len")
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add):
        other = parent.left if parent.right is use else parent.right
        return isinstance(other, ast.Tuple)
    if isinstance(parent, ast.Subscript):
        return parent.value is use and not isinstance(parent.slice, ast.Slice)
    return isinstance(parent, ast.Starred)


def _other_uses(names: Names, cell: OwnCell) -> Iterator[str]:
    """Yields why uses of a class cannot follow its rewrite."""
    nodes = names.source.nodes
    carries = [node for node in map(taken_from, nodes) if node is not None]
    if any(class_of(names, node) is cell.node for node in carries):
        yield "the class calls it, on an instance of any size: rewrite it by hand"
    if cell.is_required and any(_lifted(names, node) is cell.node for node in carries):
        yield (
            "its lifted class creates a carry, with required fields unknown: rewrite it"
        )
    derived = {cell.node}
    for node in sorted(
        (node for node in nodes if isinstance(node, ast.ClassDef)),
        key=names.source.start,
    ):
        bases = (names.only(names.value(base)) for base in node.bases)
        if any(base is not None and base.node in derived for base in bases):
            derived.add(node)
            own = {getattr(part, "name", "") for part in node.body}
            has_fields = any(isinstance(part, ast.AnnAssign) for part in node.body)
            if has_fields or own & {"initialize_carry", "__call__", "__init__"}:
                yield (
                    f"`{node.name}` is derived from it and has more fields or methods: "
                    "rewrite both"
                )


def taken_from(node: ast.AST) -> ast.expr | None:
    """Returns the object whose `initialize_carry` is read, directly or by `getattr`."""
    if isinstance(node, ast.Attribute):
        return node.value if node.attr == "initialize_carry" else None
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
        names = [getattr(argument, "value", "") for argument in node.args[1:2]]
        return node.args[0] if names == ["initialize_carry"] else None
    return None


def class_of(names: Names, node: ast.expr) -> ast.ClassDef | None:
    """Returns the class that `self`, `cls` and the like stand for in a method, or None.

    Also by `super()`, `type(self)` and `self.__class__`.
    """
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("super", "type"):
        if not node.args:
            return names.source.around(node, ast.ClassDef)
        node = node.args[-1]
    elif isinstance(node, ast.Attribute) and node.attr == "__class__":
        node = node.value
    found = names.only(node)
    if found is None or not found.is_parameter or isinstance(found.node, ast.Lambda):
        return None
    around, args = names.scope_node(found.node), found.node.args
    made = {last_name(decorator) for decorator in found.node.decorator_list}
    first = [arg.arg for arg in [*args.posonlyargs, *args.args][:1]]
    if "staticmethod" in made or first != [node.id]:
        return None
    return around if isinstance(around, ast.ClassDef) else None


def stays(names: Names, node: ast.expr) -> bool:
    """Returns whether an object's `initialize_carry` is a method that is not rewritten.

    Modules that hold cells have methods of this name with other arguments. A module
    without one may call that of a derived class.
    """
    around, seen = class_of(names, node), set()
    is_super = isinstance(node, ast.Call) and last_name(node.func) == "super"
    left = [] if around is None else [*around.bases] if is_super else [around]
    while left:
        node = names.value(left.pop(0))
        found = names.only(node)
        if found is not None and isinstance(found.node, ast.ClassDef):
            node = found.node
        if not isinstance(node, ast.ClassDef):
            qualified = names.qualified(node) or last_name(node)
            is_module = qualified.rpartition(".")[2] == "Module"
            if is_module or linen_name(qualified) in FLAX:
                return is_module
        elif node not in seen:
            seen.add(node)
            fields = {last_name(getattr(part, "target", None)) for part in node.body}
            if "initialize_carry" in {*names.scopes[node].names} | fields:
                own = own_cell(names, node)
                return own is None or bool(own.why_not)
            left = [*node.bases, *left]
    return False


def _lifted(names: Names, node: ast.expr) -> ast.AST | None:
    """Returns the class defined in the file that an expression transforms, or None."""
    inner = unlifted(names, node)
    found = None if inner is names.value(node) else names.only(inner)
    return None if found is None else found.node
