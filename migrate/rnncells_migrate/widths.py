"""The width of a cell without `features`: the size that its carry or `RNN` gets, or
the last axis of the carry that it is called with. No value is followed further.
"""

from functools import cached_property
from typing import Any

import libcst as cst

from rnncells_migrate.carries import CarryCall, carry_call, is_pure
from rnncells_migrate.cells import PARTS, CellClass, Cells, argument
from rnncells_migrate.edits import comments, without_argument
from rnncells_migrate.names import FLAX, last_name, names_in, targets

OTHER_DTYPE = "the carry now has the `param_dtype` of its cell: write the dtype there"
# Methods of modules that take the arguments of the call behind the first argument.
APPLY = ("apply", "init", "init_with_output")


class Widths(Cells):
    """A module whose cells have known widths."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._widths: dict[cst.Call, Any] = {}
        self.has_x64 = "x64" in self.text or "float64" in self.text

    @cached_property
    def carries(self) -> list[CarryCall]:
        """The old calls of `initialize_carry` that are rewritten or marked."""
        calls = (carry_call(call) for call in self.calls)
        return [c for c in calls if c is not None and not self.is_left(c.call)]

    @cached_property
    def layers(self) -> list[cst.Call]:
        """The calls that construct an `RNN` with a size."""
        calls = [c for c in self.calls if self.qualified(c.func) == f"{FLAX}.RNN"]
        return [c for c in calls if size_index(c) is not None and not self.is_left(c)]

    def width(self, cell: cst.Call) -> Any:
        """Returns the width of a cell without `features`; None if it is not known."""
        if cell not in self._widths:
            self._widths[cell] = None if self.is_left(cell) else self._width(cell)
        return self._widths[cell]

    def _width(self, cell: cst.Call) -> Any:
        call = self.called(cell)
        if call is not None:
            return self._of_carry(carry_given(call), self.constructed[cell])
        sizes = self._own_sizes(cell)
        if sizes or self.layers_of(cell):
            is_stuck = any(self.obstacle(layer, cell) for layer in self.layers_of(cell))
            return None if is_stuck else self._one_of(sizes, cell)
        beside = self._sizes_beside(cell)
        return self._of_first_call(cell) or self._one_of(beside, cell)

    def layers_of(self, cell: cst.Call) -> list[cst.Call]:
        """Returns the layers with a size that run a cell."""
        places = {cell, *self.uses(cell)}
        return [n for n in self.layers if argument(n, "cell", 0) in places]

    def obstacle(self, layer: cst.Call, cell: cst.Call) -> str:
        """Returns why the size of a layer cannot move to its cell; "" if it can."""
        new = without_argument(layer, size_index(layer))
        if len(comments(new)) < len(comments(layer)):
            return "a comment stands at the size, which is deleted: move it"
        if sum(arg.keyword is None for arg in layer.args) > 4:
            return "write the arguments behind the size as keywords"
        return OTHER_DTYPE if self.changes_dtype(cell) else ""

    def changes_dtype(self, cell: cst.Call) -> bool:
        """Returns whether a cell may create a carry of another dtype than before."""
        # Old cells took it as the seventh argument.
        is_positional = sum(arg.keyword is None for arg in cell.args) > 5
        has_dtype = is_positional or argument(cell, "param_dtype") is not None
        has_dtype = has_dtype or any(arg.star for arg in cell.args)
        return not self.constructed[cell].is_own and (has_dtype or self.has_x64)

    def _one_of(self, sizes: list[Any], cell: cst.Call) -> Any:
        """Returns the size if there is one, and it is known where the cell is."""
        texts = {self.code(size) for size in sizes}
        is_one = len(texts) == 1 and is_pure(sizes[0])
        return sizes[0] if is_one and self._is_known(sizes[0], cell) else None

    def called(self, node: cst.CSTNode) -> cst.Call | None:
        """Returns the call of a cell by an expression, if it is called there."""
        parent = self.parent(node)
        if isinstance(parent, cst.Attribute) and parent.attr.value in APPLY:
            node, parent = parent, self.parent(parent)
        return parent if isinstance(parent, cst.Call) and parent.func is node else None

    def _of_carry(self, carry: Any, cell: CellClass) -> Any:
        """Returns the width of the carry that a cell is called with, or None."""
        created = carry_call(carry)
        if created is not None and created.size is not None and is_pure(created.size):
            return created.size
        if carry is None or cell.may_move_axes or cell.is_own:
            return None
        if PARTS.get(cell.name) == 2:
            is_pair = isinstance(carry, cst.Tuple) and len(carry.elements) == 2
            is_pair = is_pair and isinstance(carry.elements[1], cst.Element)
            carry = carry.elements[1].value if is_pair else item(carry, "1")
        if not is_variable(carry):
            return None
        return item(cst.Attribute(carry, cst.Name("shape")), "-1")

    def uses(self, cell: cst.Call) -> list[cst.CSTNode]:
        """Returns the places of the variable or `self.name` that holds a cell."""
        target = next(iter(targets(self.parent(cell))), cell)
        variable = self.variable(target)
        places = self.places.get(last_name(target), []) if variable else []
        places = [place for place in places if place is not target]
        return [place for place in places if self.variable(place) == variable]

    def _own_sizes(self, cell: cst.Call) -> list[Any]:
        """Returns the sizes that carries and layers give to this very cell."""
        places = {cell, *self.uses(cell)}
        sizes = [carry.size for carry in self.carries if carry.receiver in places]
        sizes += [n.args[size_index(n)].value for n in self.layers_of(cell)]
        return [size for size in sizes if size is not None]

    def _sizes_beside(self, cell: cst.Call) -> list[Any]:
        """Returns the sizes of carries of the same class or function, if they fit."""
        sizes = []
        for carry in self.carries:
            cell_class = self.cell_class(carry.receiver)
            cells = self.cells_in(carry.receiver)
            is_own = cell_class is None and (not cells or cell in cells)
            if cell_class is not None:
                is_own = cell_class.name == self.constructed[cell].name
            around = [
                self.nearest(node, cst.ClassDef) or self.nearest(node, cst.FunctionDef)
                for node in (carry.call, cell)
            ]
            if is_own and around[0] is around[1] and carry.size is not None:
                sizes.append(carry.size)
        return sizes

    def _of_first_call(self, cell: cst.Call) -> Any:
        """Returns the width of the carry of the first call, if it is bound before."""
        function = self.nearest(cell, cst.FunctionDef)
        calls = [self.called(place) for place in self.uses(cell)]
        calls = [c for c in calls if c and self.nearest(c, cst.FunctionDef) is function]
        first = min(calls, key=self.start, default=None)
        if first is None:
            return None
        width = self._of_carry(carry_given(first), self.constructed[cell])
        if width is None or not names_in(width):
            return None
        bound = [self.start(node) for node in self.bound(names_in(width)[0])]
        here, there = self.start(cell), self.start(self.statement(first))
        is_after = any(here < at < there for at in bound)
        return width if any(at < here for at in bound) and not is_after else None

    def _is_known(self, size: cst.BaseExpression, cell: cst.Call) -> bool:
        """Returns whether a size has its value already where a cell is constructed."""
        for name in names_in(size):
            bound = self.bound(name)
            if name.value == "self":
                # A field without an assignment has its value from the constructor.
                variable = self.variable(self.parent(name))
                values = self.attributes.get(variable, [])
                is_here = self._is_in_method(cell, name, values)
            else:
                values, is_here = [*bound], bound == self.bound(name, cell)
            is_before = all(self.start(v) < self.start(cell) for v in values if v)
            if not is_here or len(values) > 1 or not is_before:
                return False
        return True

    def _is_in_method(self, cell: cst.Call, name: cst.Name, values: list[Any]) -> bool:
        """Returns whether `self.name` is that of a cell's method, and not changed."""
        method = self.nearest(cell, cst.FunctionDef, cst.ClassDef)
        setters = [self.nearest(value, cst.FunctionDef) for value in values if value]
        others = {s.name.value for s in setters if s not in (method, None)}
        classes = {self.nearest(node, cst.ClassDef) for node in (cell, name)}
        is_fixed = others <= {"__init__", "setup"} and len(classes) == 1
        return isinstance(method, cst.FunctionDef) and is_fixed


def carry_given(call: cst.Call) -> Any:
    """Returns the argument of a cell's call that is the carry, or None."""
    return argument(call, "carry", 1 if last_name(call.func) in APPLY else 0)


def size_index(layer: cst.Call) -> int | None:
    """Returns the index of the size among the arguments of an `RNN`, or None."""
    for index, arg in enumerate(layer.args):
        if arg.keyword is not None and arg.keyword.value == "cell_size":
            return index
    # Today's second argument, `time_major`, is a bool.
    second = argument(layer, "", 1)
    is_bool = last_name(second) in ("True", "False", "time_major") if second else True
    return None if is_bool or isinstance(second, cst.Comparison) else 1


def is_variable(node: cst.CSTNode) -> bool:
    """Returns whether an expression is a name, with attributes and simple indices."""
    if isinstance(node, cst.Attribute | cst.Subscript):
        return is_variable(node.value) and is_pure(node)
    return isinstance(node, cst.Name)


def item(value: cst.BaseExpression, index: str) -> cst.Subscript:
    """Returns `value[index]`."""
    part = cst.SubscriptElement(cst.Index(cst.parse_expression(index)))
    return cst.Subscript(value, [part])
