"""Which expressions of a file are classes of cells, and their instances."""

import ast
from dataclasses import dataclass, replace

from rnncells.migrate.names import Names

# Where the names of Flax are: as they were, and on the way to today.
PACKAGES = ("flax.linen", "rnncells.legacy", "rnncells")
# Parts of their carries.
PARTS = {"LSTMCell": 2, "OptimizedLSTMCell": 2, "GRUCell": 1}
CONVOLUTIONAL = {"ConvLSTMCell": 2, "ConvLSTM": 2}
LIFTS = ("scan", "remat", "checkpoint", "jit", "vmap")


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
    """

    name: str
    parts: int
    lifts: tuple[str, ...] = ()
    keeps_last_axis: bool = True
    is_own: bool = False

    @property
    def has_features(self) -> bool:
        """Whether the old constructor had a field `features`."""
        return self.name in CONVOLUTIONAL


def cell_class(names: Names, node: ast.expr) -> CellClass | None:
    """Returns the class of cells that an expression is, if it is known to be one."""
    node = names.value(node)
    name = linen_name(names.qualified(node))
    if name in PARTS or name in CONVOLUTIONAL:
        return CellClass(name, {**PARTS, **CONVOLUTIONAL}[name])
    if isinstance(node, ast.Name):
        found = names.only(node)
        if found is not None and isinstance(found.node, ast.ClassDef):
            return _of_subclass(names, found.node)
    if isinstance(node, ast.Call) and node.args:
        lift, options = lifting(names, node.func)
        inner = cell_class(names, node.args[0]) if lift else None
        if inner is not None:
            options = [*options, *node.keywords]
            keeps = inner.keeps_last_axis and not (
                lift == "vmap" and any(_is_negative(option) for option in options)
            )
            lifts = (*inner.lifts, lift)
            return replace(inner, lifts=lifts, keeps_last_axis=keeps)
    return None


def _of_subclass(names: Names, node: ast.ClassDef) -> CellClass | None:
    own = own_cell(names, node)
    if own is not None and not own.why_not:
        return CellClass(node.name, parts=0, is_own=True)
    methods = {getattr(statement, "name", None) for statement in node.body}
    if methods & {"initialize_carry", "__call__"}:
        return None
    bases = [cell_class(names, base) for base in node.bases]
    return next((base for base in bases if base is not None), None)


def lifting(names: Names, node: ast.expr) -> tuple[str | None, list[ast.keyword]]:
    """Returns the name of the transformation that a function is, and its options."""
    node = names.value(node)
    name = linen_name(names.qualified(node))
    if name in LIFTS:
        return name, []
    is_partial = isinstance(node, ast.Call) and names.qualified(node.func) in (
        "functools.partial",
        "partial",
    )
    if is_partial and node.args:
        name, options = lifting(names, node.args[0])
        return name, [*options, *node.keywords]
    return None, []


def _is_negative(option: ast.keyword) -> bool:
    if option.arg not in ("in_axes", "out_axes"):
        return False
    return any(isinstance(node, ast.USub) for node in ast.walk(option.value))


@dataclass(frozen=True)
class OwnCell:
    """A class of cells in a file, with a static `initialize_carry`.

    Attributes:
      node: the class.
      method: its `initialize_carry`.
      linen: how the file names the module of its base, as `nn`; empty: not at all.
    """

    node: ast.ClassDef
    method: ast.FunctionDef
    linen: str

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
    def why_not(self) -> str:
        """Why it cannot be rewritten; empty if it can."""
        args = self.method.args
        if not self.linen:
            return "`nowrap` is to be imported for a method of the instance"
        if (
            len(self.method.decorator_list) > 1
            or len(args.args) not in (3, 4)
            or args.vararg
            or args.kwarg
            or args.kwonlyargs
            or args.posonlyargs
        ):
            return "it is not a plain (rng, batch_dims, size, init_fn)"
        size = args.args[2].arg
        for node in ast.walk(self.method):
            if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Name):
                if isinstance(node.op, ast.Add) and node.right.id == size:
                    return "`size` is an image: `num_feature_axes` is not 1"
        return ""


def own_cell(names: Names, node: ast.ClassDef) -> OwnCell | None:
    """Returns a class of cells that has the old form; None of any other class."""
    bases = [b for b in node.bases if linen_name(names.qualified(b)) == "RNNCellBase"]
    methods = [
        statement
        for statement in node.body
        if isinstance(statement, ast.FunctionDef)
        and statement.name == "initialize_carry"
        and any(
            isinstance(decorator, ast.Name) and decorator.id == "staticmethod"
            for decorator in statement.decorator_list
        )
    ]
    if not bases or not methods:
        return None
    linen = bases[0].value if isinstance(bases[0], ast.Attribute) else None
    return OwnCell(node, methods[0], "" if linen is None else names.source.text(linen))
