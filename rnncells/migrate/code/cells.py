"""Classes of cells: those of Flax, and those of a file with the old form."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rnncells.migrate.code.names import Names, stored
from rnncells.migrate.code.source import Source

# Where the names of Flax are: as they were, and on the way to today.
PACKAGES = ("flax.linen", "rnncells.legacy", "rnncells")
# Parts of their carries.
PARTS = {"LSTMCell": 2, "OptimizedLSTMCell": 2, "GRUCell": 1}
CONVOLUTIONAL = {"ConvLSTMCell": 2, "ConvLSTM": 2}
LIFTS = ("scan", "remat", "checkpoint", "jit", "vmap")
OTHER_LIFTS = ("map_variables", "remat_scan", "custom_vjp", "add_metadata_axis")
PARTIAL = ("functools.partial", "partial")
# Names that a method of an instance has.
NEW = ("self", "input_shape")


def linen_name(qualified: str | None) -> str | None:
    """Returns the name in `flax.linen` of what a qualified name stands for."""
    for package in PACKAGES:
        if qualified and qualified.startswith(f"{package}."):
            name = qualified.removeprefix(f"{package}.")
            for inner in ("recurrent.", "transforms."):
                name = name.removeprefix(inner)
            return name
    return None


@dataclass(frozen=True)
class CellClass:
    """A class of cells.

    Attributes:
      name: in `flax.linen`.
      parts: of its carry.
      lifts: names of the transformations that it went through, innermost first.
      keeps_last_axis: whether its carry's last axis is that of the cell.
      is_own: whether it is a class of the file, with a static `initialize_carry`.
      is_required: whether one of those cannot be made without arguments.
    """

    name: str
    parts: int
    lifts: tuple[str, ...] = ()
    keeps_last_axis: bool = True
    is_own: bool = False
    is_required: bool = False

    @property
    def has_features(self) -> bool:
        """Whether the old constructor had a field `features`."""
        return self.name in CONVOLUTIONAL


def lifting(names: Names, node: ast.expr) -> tuple[str | None, list[ast.keyword]]:
    """Returns the name of the transformation of classes that a function is.

    Returns:
      its name in `flax.linen`, None if it is none, and the options given with it.
    """
    node = names.value(node)
    name = linen_name(names.qualified(node))
    if name in LIFTS + OTHER_LIFTS:
        return name, []
    is_partial = isinstance(node, ast.Call) and (
        (names.qualified(node.func) or getattr(node.func, "id", "")) in PARTIAL
    )
    if is_partial and node.args:
        name, options = lifting(names, node.args[0])
        return name, [*options, *node.keywords]
    return None, []


@dataclass(frozen=True)
class OwnCell:
    """A class of cells in a file, with an `initialize_carry` of no instance.

    Attributes:
      node: the class.
      method: its `initialize_carry`.
      linen: how the file names the module of its base, as `nn`; empty: not at all.
      why_not: why it cannot be rewritten; empty if it can.
    """

    node: ast.ClassDef
    method: ast.FunctionDef
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
        """Whether it cannot be made without arguments."""
        return any(field.value is None for field in self.fields.values())

    @property
    def feature_axes(self) -> list[ast.expr | None]:
        """How many axes are features, each time that the class says it."""
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
    """Returns a class of cells that has the old form; None of any other class."""
    known = {"RNNCellBase", *PARTS, *CONVOLUTIONAL}
    bases = [b for b in node.bases if linen_name(names.qualified(b)) in known]
    methods = [
        statement
        for statement in node.body
        if isinstance(statement, ast.FunctionDef)
        and statement.name == "initialize_carry"
        and _has_no_instance(statement)
    ]
    if not bases or not methods:
        return None
    linen = bases[0].value if isinstance(bases[0], ast.Attribute) else None
    text = "" if linen is None else names.source.text(linen)
    cell = OwnCell(node, methods[0], text)
    return replace(cell, why_not=next(_obstacles(names, cell), ""))


def _has_no_instance(method: ast.FunctionDef) -> bool:
    """Says whether a method is static, or of the class, with arguments as of old."""
    made = {getattr(d, "id", getattr(d, "attr", "")) for d in method.decorator_list}
    args = method.args
    given = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    # A key and a shape: that is today's form, static or not.
    is_new = len(given) - ("classmethod" in made) == 2 and args.vararg is None
    return bool(made & {"staticmethod", "classmethod"}) and not is_new


def _obstacles(names: Names, cell: OwnCell) -> Iterator[str]:
    """Yields why a class cannot be rewritten."""
    node, method = cell.node, cell.method
    if names.source.is_skipped(method):
        yield "it is skipped"
    if not cell.linen:
        yield "`nowrap` is to be imported for a method of the instance"
    if not _is_plain(method):
        yield "it is not a plain (rng, batch_dims, size, init_fn)"
        return
    inside = names.source.tokens_between(*signature(names.source, method))
    if any(token.startswith("#") for _, _, token in inside):
        yield "comments stand between its arguments"
    if [linen_name(names.qualified(base)) for base in node.bases] != ["RNNCellBase"]:
        yield "its bases may have fields of the same names"
    bound = {*cell.fields, *names.scopes[node].names}
    for name in ("features", "carry_init", "__init__", "__post_init__"):
        if name in bound:
            yield f"the class has its own `{name}`"
    if any(getattr(axes, "value", None) != 1 for axes in cell.feature_axes) or not all(
        _is_number(names, use) for use in _reads(method, method.args.args[2].arg)
    ):
        yield "`size` may be that of an image: `num_feature_axes` is not 1"
    for default in method.args.defaults:
        if any(_reads(default, name) for name in bound):
            yield "its default is a name of the class"
    if any(arg.arg in NEW for arg in method.args.args) or any(
        _reads(method, name) for name in NEW
    ):
        yield "`self` or `input_shape` is another name in it"
    yield from _other_uses(names, cell)


def _is_plain(method: ast.FunctionDef) -> bool:
    args = method.args
    made = [getattr(decorator, "id", "") for decorator in method.decorator_list]
    return (
        made == ["staticmethod"]
        and len(args.args) in (3, 4)
        and len(args.defaults) <= len(args.args) - 3
        and not (args.vararg or args.kwarg or args.kwonlyargs or args.posonlyargs)
    )


def signature(source: Source, method: ast.FunctionDef) -> tuple[int, int]:
    """Returns where the parameters of a method start and end, but for a last comma."""
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
    """Says whether a size is used as one number is, not as a tuple of them."""
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


def _other_uses(names: Names, cell: OwnCell) -> Iterator[str]:
    """Yields uses of a class that would have to change with it, and cannot."""
    nodes = names.source.nodes
    carries = [
        node.value
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr == "initialize_carry"
    ]
    inside = set(ast.walk(cell.node))
    if any(_is_itself(node) for node in carries if node in inside):
        yield "the class calls it itself, by an instance of any size"
    if cell.is_required and any(_lifted(names, node) is cell.node for node in carries):
        yield "its lifted class makes a carry, and not all of its fields are known"
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
                yield f"`{node.name}` is derived from it, and has more of its own"


def _is_itself(node: ast.expr) -> bool:
    """Says whether an expression, in a class, is an instance of it, or the class."""
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") in ("super", "type")
    return (
        getattr(node, "id", "") in ("self", "cls")
        or getattr(node, "attr", "") == "__class__"
    )


def _lifted(names: Names, node: ast.expr) -> ast.AST | None:
    """Returns the class in the file that an expression is a transformation of."""
    node, seen = names.value(node), []
    while isinstance(node, ast.Call) and node.args and node not in seen:
        if lifting(names, node.func)[0] is None:
            return None
        seen.append(node)
        node = names.value(node.args[0])
    found = names.only(node) if seen else None
    return None if found is None else found.node
