"""The classes of cells that expressions stand for, and what constructs them."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import libcst as cst

from rnncells_migrate.names import FLAX, Names, last_name, self_attribute
from rnncells_migrate.own_cells import is_plain

# The number of arrays in the carry of each cell of Flax <= 0.6.11.
PARTS = {"LSTMCell": 2, "OptimizedLSTMCell": 2, "GRUCell": 1}
CONVOLUTIONAL = ("ConvLSTMCell", "ConvLSTM")
LIFTS = ("scan", "remat", "checkpoint", "jit", "vmap")
FUNCTION = re.compile(r"(_fn|func|function|activation|sigmoid|tanh|relu)$")
PASSED_OR_SET = (cst.Arg, cst.AssignTarget)
# What a class derived from a cell may define, so that it is another cell.
CHANGED = re.compile(
    r"\bdef initialize_carry\b|(features|param_dtype|carry_init) *[:=]"
)
# Functions and methods whose results hold the items of their arguments.
OF_ITEMS = ("enumerate", "zip", "reversed", "list", "tuple", "items", "values")


@dataclass(frozen=True)
class CellClass:
    """A class of cells of Flax, or an own class, which gets the field `features`."""

    name: str
    is_own: bool = False
    # Whether `nn.vmap` may have put its axis behind the features.
    may_move_axes: bool = False

    @property
    def is_convolutional(self) -> bool:
        return self.name in CONVOLUTIONAL and not self.is_own


class Cells(Names):
    """A module whose cells are known."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._classes: dict[cst.CSTNode, CellClass | None] = {}

    @cached_property
    def constructed(self) -> dict[cst.Call, CellClass]:
        """The calls that construct cells."""
        pairs = ((call, self.cell_class(call.func)) for call in self.calls)
        return {call: cell for call, cell in pairs if cell is not None}

    def cell_class(self, node: cst.CSTNode) -> CellClass | None:
        """Returns the class of cells that an expression stands for, or None."""
        if node not in self._classes:
            # A class that is defined by itself is none.
            self._classes[node] = None
            self._classes[node] = self._cell_class(node)
        return self._classes[node]

    def _cell_class(self, node: cst.CSTNode) -> CellClass | None:
        name = self._of_flax(node)
        if name in PARTS or name in CONVOLUTIONAL:
            return CellClass(name)
        definition = self.local_class(node)
        if definition is not None:
            if is_plain(self, definition):
                return CellClass(definition.name.value, is_own=True)
            is_changed = CHANGED.search(self.code(definition)) is not None
            is_derived = len(definition.bases) == 1 and not is_changed
            return self.cell_class(definition.bases[0].value) if is_derived else None
        if isinstance(node, cst.Call):
            return self._lifted(node)
        value = self.value(node)
        return self.cell_class(value) if value is not None else None

    def _of_flax(self, node: cst.CSTNode) -> str:
        """Returns the name in `flax.linen` of what an expression stands for, or ""."""
        prefix, _, name = self.qualified(node).rpartition(".")
        return name if prefix == FLAX else ""

    def _lifted(self, call: cst.Call) -> CellClass | None:
        """Returns the class that `nn.scan(Cell, ...)` and the like return."""
        transform = call.func
        value = transform if isinstance(transform, cst.Call) else self.value(transform)
        if isinstance(value, cst.Call) and value.args:
            if self.qualified(value.func) == "functools.partial":
                transform = value.args[0].value
        lift, target = self._of_flax(transform), argument(call, "target", 0)
        cell = self.cell_class(target) if lift in LIFTS and target else None
        axes = argument(call, "in_axes")
        if cell is None or lift != "vmap" or axes is None or self.code(axes) == "0":
            return cell
        return CellClass(cell.name, cell.is_own, may_move_axes=True)

    def cells_in(self, node: cst.CSTNode, depth: int = 0) -> list[cst.Call]:
        """Returns the calls that construct what a name or a container may hold."""
        if node in self.constructed:
            return [node]
        parts: list[Any] = []
        if isinstance(node, cst.Name) or self_attribute(node):
            parts = [*filter(None, self.values(node)), *self.iterated(node)]
        elif isinstance(node, cst.Call):
            if last_name(node.func) in OF_ITEMS:
                parts = [arg.value for arg in node.args]
                parts += [getattr(node.func, "value", None)]
        elif not isinstance(node, cst.Attribute | cst.Lambda):
            parts = list(node.children)
        nodes = [part for part in parts if isinstance(part, cst.CSTNode)]
        cells = [self.cells_in(part, depth + 1) for part in nodes if depth < 9]
        return list(dict.fromkeys(cell for found in cells for cell in found))

    def features(self, call: cst.Call) -> Any:
        """Returns `features` of a cell, or unpacked arguments that may hold it."""
        is_own = self.constructed[call].is_own
        for index, arg in enumerate(call.args):
            if arg.star:
                if self.may_hold_features(arg.value):
                    return arg.value
            elif arg.keyword is not None:
                if arg.keyword.value == "features":
                    return arg.value
            # The first argument of an old cell was its gate function. The fields of
            # an own cell stand before `features`.
            elif index == 0 and not is_own and not self._is_function(arg.value):
                return arg.value
        return None

    def may_hold_features(self, node: cst.BaseExpression) -> bool:
        """Returns whether unpacked arguments are not known to lack `features`."""
        value = node if isinstance(node, cst.Dict | cst.Call) else self.value(node)
        is_call = isinstance(value, cst.Call) and last_name(value.func) == "dict"
        if is_call or isinstance(value, cst.Dict):
            # Changes of the dictionary are not followed.
            same = [n for n in self.places.get(last_name(node), []) if n is not node]
            is_plain = all(isinstance(self.parent(n), PASSED_OR_SET) for n in same)
            is_unknown = re.search(r"\*\*|\bfeatures\b", self.code(value))
            return not is_plain or is_unknown is not None
        return True

    def _is_function(self, node: cst.BaseExpression) -> bool:
        """Returns whether an argument is a function, as old gate functions were."""
        library = self.qualified(node).split(".")[0]
        if isinstance(node, cst.Lambda) or library in ("flax", "jax"):
            return True
        kinds = {type(bound) for bound in self.bound(node)}
        return kinds == {cst.FunctionDef} or bool(FUNCTION.search(last_name(node)))


def argument(call: cst.Call, name: str, position: int | None = None) -> Any:
    """Returns an argument by its keyword or its position, or None."""
    for index, arg in enumerate(call.args):
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
        if index == position and arg.keyword is None and not arg.star:
            return arg.value
    return None
