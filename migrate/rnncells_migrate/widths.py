"""The width of a cell that is constructed without `features`.

It is the size that a carry or an `RNN` gets for this cell, or the last axis of the carry
that the cell is called with. Values are not followed through variables.
"""

from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from rnncells_migrate.carries import CarryCall, carry_call, is_pure
from rnncells_migrate.cells import PARTS, CellClass, Cells, argument, defined_names
from rnncells_migrate.names import Names, last_name, self_attribute, targets
from rnncells_migrate.tree import Tree

# Methods of modules that take the arguments of the call behind the first argument.
APPLY = {"apply", "init", "init_with_output"}


@dataclass(frozen=True)
class Use:
    """A carry that a cell is called with.

    Attributes:
      call: the call.
      carry: its argument; None if it has none.
    """

    call: cst.Call
    carry: cst.BaseExpression | None


class Widths:
    """The widths of the cells of a module."""

    def __init__(self, tree: Tree, names: Names, cells: Cells):
        self.tree, self.names, self.cells = tree, names, cells
        self._known: dict[cst.Call, cst.BaseExpression | None] = {}

    @cached_property
    def carries(self) -> list[CarryCall]:
        """The old calls of `initialize_carry` that are rewritten or marked."""
        found = (carry_call(call) for call in self.tree.calls)
        return [c for c in found if c is not None and not self.tree.is_left(c.call)]

    @cached_property
    def layers(self) -> list[cst.Call]:
        """The calls that construct an `RNN`."""
        return [
            call
            for call in self.tree.calls
            if self.names.qualified(call.func) == "flax.linen.RNN"
        ]

    def of(self, cell: cst.Call) -> cst.BaseExpression | None:
        """Returns the width of a cell without `features`; None if it is not known."""
        if cell not in self._known:
            self._known[cell] = None if self.tree.is_left(cell) else self._of(cell)
        return self._known[cell]

    def _of(self, cell: cst.Call) -> cst.BaseExpression | None:
        cell_class = self.cells.constructed[cell]
        use = self.use(cell)
        if use is not None:
            return self._of_carry(use.carry, cell_class)
        own = self._one_of(self._own_sizes(cell), cell)
        if own is not None:
            return own
        first = self._of_first_use(cell, cell_class)
        if first is not None and self._is_parameter(first):
            return first
        return self._one_of(self._sizes_beside(cell, cell_class), cell) or first

    def _one_of(
        self, sizes: list[cst.BaseExpression], cell: cst.Call
    ) -> cst.BaseExpression | None:
        """Returns the size if there is one, and a cell can be constructed with it."""
        texts = {self.tree.code(size) for size in sizes}
        is_one = len(texts) == 1 and self.is_usable(sizes[0], cell)
        return sizes[0] if is_one else None

    def _is_parameter(self, width: cst.BaseExpression) -> bool:
        """Returns whether a carry may come from the caller of a function."""
        bound = self.names.assignments(_base(width))
        return any(isinstance(getattr(a, "node", None), cst.Param) for a in bound)

    def use(self, node: cst.CSTNode) -> Use | None:
        """Returns the call of a cell by an expression, if it is called there."""
        parent = self.tree.parent(node)
        if isinstance(parent, cst.Call) and parent.func is node:
            return Use(parent, argument(parent, "carry", 0))
        if isinstance(parent, cst.Attribute) and parent.attr.value in APPLY:
            call = self.tree.parent(parent)
            if isinstance(call, cst.Call) and call.func is parent:
                return Use(call, argument(call, "carry", 1))
        return None

    def _of_carry(
        self, carry: cst.BaseExpression | None, cell: CellClass
    ) -> cst.BaseExpression | None:
        """Returns the width of the carry that a cell is called with."""
        made = carry_call(carry) if carry is not None else None
        if made is not None and made.size is not None and is_pure(made.size):
            return made.size
        if carry is None or cell.may_move_axes or cell.own is not None:
            return None
        if PARTS[cell.name] == 2 and isinstance(carry, cst.Tuple):
            carry = carry.elements[-1].value if len(carry.elements) == 2 else None
        elif PARTS[cell.name] == 2 and is_variable(carry):
            carry = subscript(carry, "1")
        if carry is None or not is_variable(carry):
            return None
        return subscript(cst.Attribute(carry, cst.Name("shape")), "-1")

    def places(self, cell: cst.Call) -> list[cst.CSTNode]:
        """Returns the places of the variable or `self.name` that holds a cell."""
        parent = self.tree.parent(cell)
        if isinstance(parent, cst.Assign | cst.AnnAssign | cst.NamedExpr):
            target = targets(parent)[0]
            name = self_attribute(target)
            if name:
                within = self.tree.class_of(cell)
                return [
                    node
                    for node in self.tree.nodes
                    if self_attribute(node) == name
                    and node is not target
                    and self.tree.class_of(node) is within
                ]
            if isinstance(target, cst.Name):
                bound = self.names.assignments(target)
                same = self.tree.names.get(target.value, [])
                return [
                    node
                    for node in same
                    if node is not target and self.names.assignments(node) & bound
                ]
        return []

    def _own_sizes(self, cell: cst.Call) -> list[cst.BaseExpression]:
        """Returns the sizes that its carries and its `RNN` give to this very cell."""
        places = {cell, *self.places(cell)}
        sizes = [c.size for c in self.carries if c.receiver in places]
        for layer in self.layers:
            index = size_index(layer)
            is_live = index is not None and not self.tree.is_left(layer)
            if is_live and argument(layer, "cell", 0) in places:
                sizes.append(layer.args[index].value)
        return [size for size in sizes if size is not None]

    def _sizes_beside(
        self, cell: cst.Call, cell_class: CellClass
    ) -> list[cst.BaseExpression]:
        """Returns the sizes of all carries beside a cell that may be its own.

        Beside it are the carries of the same class, or else of the same function.
        """
        holder = self._holder(cell)
        sizes = []
        for carry in self.carries:
            if carry.size is None or self._holder(carry.call) is not holder:
                continue
            of_class = self.cells.class_of(carry.receiver)
            if of_class is None:
                held = self.cells.cells_in(carry.receiver)
                if held and cell not in held:
                    continue
            elif of_class.name != cell_class.name:
                continue
            sizes.append(carry.size)
        return sizes

    def _holder(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self.tree.class_of(node) or self.tree.function_of(node)

    def _of_first_use(
        self, cell: cst.Call, cell_class: CellClass
    ) -> cst.BaseExpression | None:
        """Returns the width of the carry of the first call, if that is bound before."""
        function = self.tree.function_of(cell)
        for place in sorted(self.places(cell), key=self.tree.start):
            use = self.use(place)
            if use is None or self.tree.function_of(place) is not function:
                continue
            width = self._of_carry(use.carry, cell_class)
            if width is not None and self._is_bound(width, cell, use.call):
                return width
            return None
        return None

    def _is_bound(
        self, width: cst.BaseExpression, cell: cst.Call, use: cst.Call
    ) -> bool:
        """Returns whether a carry already has its value where a cell is constructed."""
        bound = self._bound_at(_base(width), cell)
        first, last = self.tree.start(cell), self.tree.start(self.tree.statement(use))
        return any(at < first for at in bound) and not any(
            first < at < last for at in bound
        )

    def _bound_at(self, name: cst.Name, near: cst.CSTNode) -> list[tuple[int, int]]:
        """Returns where a name is bound in the function of a node."""
        function = self.tree.function_of(near)
        nodes = [getattr(a, "node", None) for a in self.names.assignments(name)]
        nodes = [n for n in nodes if n is not None]
        if any(self.tree.function_of(n) is not function for n in nodes):
            return []
        return [self.tree.start(node) for node in nodes]

    def is_usable(self, size: cst.BaseExpression, cell: cst.Call) -> bool:
        """Returns whether a size has its value already where a cell is constructed."""
        if not is_pure(size):
            return False
        return all(self._is_known(name, cell) for name in names_in(size))

    def _is_known(self, name: cst.Name, cell: cst.Call) -> bool:
        bound = self.names.assignments(name)
        scope = self.tree.scope(cell)
        there = set(scope[name.value]) if scope is not None else set()
        if name.value == "self":
            field = self.tree.parent(name)
            return self_attribute(field) != "" and self._is_field(field, cell)
        if len(bound) != 1 or bound != there:
            return False
        node = getattr(next(iter(bound)), "node", None)
        if node is None or self.tree.function_of(node) is not self.tree.function_of(cell):
            return True
        return self.tree.start(node) < self.tree.start(cell)

    def _is_field(self, field: cst.Attribute, cell: cst.Call) -> bool:
        """Returns whether `self.name` is a field, or is assigned before the cell."""
        definition, name = self.tree.class_of(cell), self_attribute(field)
        if definition is None or self.tree.class_of(field) is not definition:
            return False
        values = self.names.attributes.get((definition, name), [])
        if not values:
            return name in defined_names(definition)
        if len(values) > 1 or values[0] is None:
            return False
        if self.tree.function_of(values[0]) is self.tree.function_of(cell):
            return self.tree.start(values[0]) < self.tree.start(cell)
        return self.tree.function_of(values[0]).name.value == "__init__"


def size_index(layer: cst.Call) -> int | None:
    """Returns the index of the size among the arguments of an `RNN`, or None.

    Today's second argument, `time_major`, is a bool.
    """
    for index, arg in enumerate(layer.args):
        if arg.keyword is not None and arg.keyword.value == "cell_size":
            return index
    if len(layer.args) > 1 and layer.args[1].keyword is None and not layer.args[1].star:
        second = layer.args[1].value
        is_bool = last_name(second) in {"True", "False", "time_major"}
        is_computed = isinstance(second, cst.Comparison | cst.BooleanOperation)
        return None if is_bool or is_computed else 1
    return None


def is_variable(node: cst.CSTNode) -> bool:
    """Returns whether an expression is a name, with attributes and simple indices."""
    if isinstance(node, cst.Name):
        return True
    if isinstance(node, cst.Attribute):
        return is_variable(node.value)
    return isinstance(node, cst.Subscript) and is_variable(node.value) and is_pure(node)


def _base(node: cst.BaseExpression) -> cst.Name:
    """Returns the name that a variable with attributes and indices starts with."""
    while not isinstance(node, cst.Name):
        node = node.value
    return node


def subscript(value: cst.BaseExpression, index: str) -> cst.Subscript:
    """Returns `value[index]`."""
    part = cst.SubscriptElement(cst.Index(cst.parse_expression(index)))
    return cst.Subscript(value, [part])


def names_in(node: cst.CSTNode) -> list[cst.Name]:
    """Returns the names in an expression that are not those of attributes."""
    if isinstance(node, cst.Name):
        return [node]
    if isinstance(node, cst.Attribute):
        return names_in(node.value)
    return [name for child in node.children for name in names_in(child)]
