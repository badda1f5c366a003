"""Classes of cells: those of Flax, and those of a file with the old form."""

import ast
from dataclasses import dataclass

from rnncells.migrate.names import Names

# Where the names of Flax are: as they were, and on the way to today.
PACKAGES = ("flax.linen", "rnncells.legacy", "rnncells")
# Parts of their carries.
PARTS = {"LSTMCell": 2, "OptimizedLSTMCell": 2, "GRUCell": 1}
CONVOLUTIONAL = {"ConvLSTMCell": 2, "ConvLSTM": 2}


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
