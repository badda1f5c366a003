"""The classes of cells that expressions stand for, and the calls that construct them."""

import re
from dataclasses import dataclass, replace
from functools import cached_property

import libcst as cst

from rnncells_migrate.names import FLAX, Names, last_name, self_attribute
from rnncells_migrate.tree import Tree

# The number of arrays in the carry of each cell of Flax <= 0.6.11.
PARTS = {
    "LSTMCell": 2,
    "OptimizedLSTMCell": 2,
    "GRUCell": 1,
    "ConvLSTMCell": 2,
    "ConvLSTM": 2,
}
CONVOLUTIONAL = {"ConvLSTMCell", "ConvLSTM"}
LIFTS = {"scan", "remat", "checkpoint", "jit", "vmap"}
FUNCTION = re.compile(r"(_fn|func|function|activation|sigmoid|tanh|relu)$")
# Functions and methods whose results hold the items of their arguments.
OF_ITEMS = {"enumerate", "zip", "reversed", "list", "tuple", "items", "values"}


@dataclass(frozen=True)
class CellClass:
    """A class of cells.

    Attributes:
      name: of the class in Flax, or of the own class.
      own: the definition, for a class that derives from `RNNCellBase` itself.
      may_move_axes: whether `nn.vmap` may have put its axis behind the features.
    """

    name: str
    own: cst.ClassDef | None = None
    may_move_axes: bool = False

    @property
    def is_convolutional(self) -> bool:
        return self.name in CONVOLUTIONAL and self.own is None


class Cells:
    """The cells of a module.

    Args:
      tree: the module.
      names: what its names stand for.
      own: definitions of own cells, which get `features`.
    """

    def __init__(self, tree: Tree, names: Names, own: list[cst.ClassDef]):
        self.tree, self.names, self.own = tree, names, own
        self._classes: dict[cst.CSTNode, CellClass | None] = {}

    @cached_property
    def constructed(self) -> dict[cst.Call, CellClass]:
        """The calls that construct cells."""
        pairs = ((call, self.class_of(call.func)) for call in self.tree.calls)
        return {call: cell for call, cell in pairs if cell is not None}

    def class_of(self, node: cst.CSTNode) -> CellClass | None:
        """Returns the class of cells that an expression stands for, or None."""
        if node not in self._classes:
            # A class that is defined by itself is none.
            self._classes[node] = None
            self._classes[node] = self._class_of(node)
        return self._classes[node]

    def _class_of(self, node: cst.CSTNode) -> CellClass | None:
        prefix, _, name = self.names.qualified(node).rpartition(".")
        if prefix == FLAX and name in PARTS:
            return CellClass(name)
        if isinstance(node, cst.Call):
            lift = self._lift(node.func)
            target = argument(node, "target", 0)
            if not lift or target is None:
                return None
            cell = self.class_of(target)
            axes = argument(node, "in_axes")
            is_first = axes is None or self.tree.code(axes) == "0"
            if cell is None or lift != "vmap" or is_first:
                return cell
            return replace(cell, may_move_axes=True)
        definition = self.names.local_class(node)
        if definition is not None:
            return self._class_of_definition(definition)
        value = self.names.value(node)
        return self.class_of(value) if value is not None else None

    def _lift(self, node: cst.CSTNode) -> str:
        """Returns the name of a lifting transform, also of a partial one; or ""."""
        prefix, _, name = self.names.qualified(node).rpartition(".")
        if prefix == FLAX and name in LIFTS:
            return name
        value = node if isinstance(node, cst.Call) else self.names.value(node)
        if isinstance(value, cst.Call) and value.args:
            if self.names.qualified(value.func) == "functools.partial":
                prefix, _, name = self.names.qualified(value.args[0].value).rpartition(".")
                return name if prefix == FLAX and name in LIFTS else ""
        return ""

    def _class_of_definition(self, definition: cst.ClassDef) -> CellClass | None:
        """Returns the class of an own cell, or of a subclass of Flax's cells."""
        if definition in self.own:
            return CellClass(definition.name.value, own=definition)
        changed = defined_names(definition) & {"initialize_carry", "features"}
        if changed or len(definition.bases) != 1:
            return None
        return self.class_of(definition.bases[0].value)

    def cells_in(self, node: cst.CSTNode, depth: int = 0) -> list[cst.Call]:
        """Returns the calls that construct what an expression may hold.

        It looks into containers, and at the values of names and of loop variables.
        """
        if depth > 4:
            return []
        if isinstance(node, cst.Call):
            if node in self.constructed:
                return [node]
            parts = [a.value for a in node.args]
            if isinstance(node.func, cst.Attribute):
                parts.append(node.func.value)
            parts = parts if last_name(node.func) in OF_ITEMS else []
        elif isinstance(node, cst.Name) or self_attribute(node):
            parts = [v for v in self.names.values(node) if v is not None]
            if isinstance(node, cst.Name):
                parts += self.names.iterated(node)
        else:
            parts = contents(node)
        found = [cell for part in parts for cell in self.cells_in(part, depth + 1)]
        return list(dict.fromkeys(found))

    def features(self, call: cst.Call) -> "cst.BaseExpression | str | None":
        """Returns `features` of a cell: an expression, None, or a name that may hold it."""
        given = argument(call, "features")
        # The fields of an own cell come before `features`.
        is_own = self.constructed[call].own is not None
        first = call.args[0] if call.args and not is_own else None
        if given is None and first is not None and first.keyword is None:
            if first.star:
                return self._unpacked(first.value)
            if not self.is_function(first.value):
                given = first.value
        for arg in call.args if given is None else ():
            if arg.star == "**":
                given = self._unpacked(arg.value)
                if given is not None:
                    return given
        return given

    def _unpacked(self, node: cst.BaseExpression) -> "cst.BaseExpression | str | None":
        """Returns `features` of unpacked arguments, as `features` does."""
        value = node if isinstance(node, cst.Dict | cst.Call) else self.names.value(node)
        if isinstance(value, cst.Call) and last_name(value.func) == "dict":
            if all(arg.keyword for arg in value.args):
                return argument(value, "features")
        if isinstance(value, cst.Dict):
            entries = {
                e.key.evaluated_value: e.value
                for e in value.elements
                if isinstance(e, cst.DictElement) and isinstance(e.key, cst.SimpleString)
            }
            if len(entries) == len(value.elements):
                return entries.get("features")
        return self.tree.code(node)

    def is_function(self, node: cst.BaseExpression) -> bool:
        """Returns whether an argument is a function, as old gate functions were."""
        if isinstance(node, cst.Lambda):
            return True
        library = self.names.qualified(node).split(".")[0]
        if library in {"flax", "jax"} or FUNCTION.search(last_name(node)):
            return True
        if isinstance(node, cst.Name):
            assigned = self.names.assignments(node)
            nodes = [getattr(a, "node", None) for a in assigned]
            return bool(nodes) and all(isinstance(n, cst.FunctionDef) for n in nodes)
        return False


def argument(
    call: cst.Call, name: str, position: int | None = None
) -> cst.BaseExpression | None:
    """Returns an argument by its keyword or its position, or None."""
    for index, arg in enumerate(call.args):
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
        if index == position and arg.keyword is None and not arg.star:
            return arg.value
    return None


def contents(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Returns the expressions of which a container, or a choice, may hold the value."""
    if isinstance(node, cst.List | cst.Tuple | cst.Set | cst.Dict):
        return [element.value for element in node.elements]
    if isinstance(node, cst.ListComp | cst.SetComp | cst.GeneratorExp):
        return [node.elt]
    if isinstance(node, cst.DictComp | cst.Subscript):
        return [node.value]
    if isinstance(node, cst.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, cst.BinaryOperation | cst.BooleanOperation):
        return [node.left, node.right]
    return []


def defined_names(definition: cst.ClassDef) -> set[str]:
    """Returns the names of the fields and methods in the body of a class."""
    names = set()
    for statement in definition.body.body:
        is_line = isinstance(statement, cst.SimpleStatementLine)
        for node in statement.body if is_line else [statement]:
            if isinstance(node, cst.AnnAssign):
                names.add(last_name(node.target))
            elif isinstance(node, cst.Assign):
                names |= {last_name(target.target) for target in node.targets}
            elif isinstance(node, cst.FunctionDef):
                names.add(node.name.value)
    return names
