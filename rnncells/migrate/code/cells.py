"""Classes of cells, and the Flax transformations applied to them."""

import ast
from dataclasses import dataclass

from rnncells.migrate.code.names import Names

# Modules with the recurrent names of Flax.
PACKAGES = ("flax.linen", "rnncells.legacy", "rnncells")
LINEN = PACKAGES[:2]
# The number of arrays in the carry of each class.
PARTS = {"LSTMCell": 2, "OptimizedLSTMCell": 2, "GRUCell": 1}
CONVOLUTIONAL = {"ConvLSTMCell": 2, "ConvLSTM": 2}
FLAX = (*PARTS, *CONVOLUTIONAL)
LIFTS = ("scan", "remat", "checkpoint", "jit", "vmap")
OTHER_LIFTS = ("map_variables", "remat_scan", "custom_vjp", "add_metadata_axis")
PARTIAL = ("functools.partial", "partial")


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
      parts: the number of arrays in its carry.
      lifts: names of the transformations applied to it, innermost first.
      keeps_last_axis: whether the last axis of its carry is that of the cell.
      method: the static `initialize_carry` of a class defined in the file, else None.
      is_required: whether a class defined in the file has required arguments.
    """

    name: str
    parts: int
    lifts: tuple[str, ...] = ()
    keeps_last_axis: bool = True
    method: ast.AST | None = None
    is_required: bool = False

    @property
    def is_own(self) -> bool:
        return self.method is not None

    @property
    def has_features(self) -> bool:
        """Whether the old constructor had a field `features`."""
        return self.name in CONVOLUTIONAL


def lifting(names: Names, node: ast.expr) -> tuple[str | None, list[ast.keyword]]:
    """Returns which transformation of classes an expression is.

    Returns:
      its name in `flax.linen`, or None, and the options given with `partial`.
    """
    options: list[ast.keyword] = []
    seen: list[ast.expr] = []
    while (node := names.value(node)) not in seen:
        name = linen_name(names.qualified(node))
        if name in LIFTS + OTHER_LIFTS:
            return name, options
        is_partial = isinstance(node, ast.Call) and names.function_name(node) in PARTIAL
        if not (is_partial and node.args):
            break
        # A name may be bound to a partial of itself.
        seen.append(node)
        node, options = node.args[0], [*node.keywords, *options]
    return None, []


def unlifted(names: Names, node: ast.expr) -> ast.expr:
    """Returns the class that an expression transforms, or else the expression.

    Names are replaced by their values.
    """
    node, seen = names.value(node), []
    while isinstance(node, ast.Call) and node.args and node not in seen:
        if lifting(names, node.func)[0] is None:
            break
        seen.append(node)
        node = names.value(node.args[0])
    return node
