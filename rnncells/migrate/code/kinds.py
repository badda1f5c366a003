"""What expressions of a file are: classes of cells, cells, or something else."""

import ast
from dataclasses import dataclass, replace
from functools import reduce

from rnncells.migrate.code.cells import (
    CONVOLUTIONAL,
    LIFTS,
    PACKAGES,
    PARTIAL,
    PARTS,
    CellClass,
    lifting,
    linen_name,
    unlifted,
)
from rnncells.migrate.code.names import Binding, Names, is_none, last_name
from rnncells.migrate.code.own_cells import class_of, own_cell

# Annotations that allow any module.
MODULES = ("Module", "RNNCellBase")
# Packages whose types allow cells and other values.
OPEN_TYPES = ("typing.", "collections.", "flax.linen.", "flax.typing.", "rnncells.")
# Names that give a subclass another carry or another step if it defines them.
CHANGES = {"initialize_carry", "__call__", "setup", "__post_init__", "__init__"}
CHANGES |= {"param_dtype", "carry_init"}


@dataclass(frozen=True)
class Kind:
    """All values that an expression may have.

    Attributes:
      classes: classes of cells; None stands for an unknown one.
      made: calls that make cells; None stands for an unknown call.
      is_other: whether it may be neither a cell nor a class of cells.
      is_open: whether it may be anything, because another file provides it.
    """

    classes: frozenset[CellClass | None] = frozenset()
    made: frozenset[ast.Call | None] = frozenset()
    is_other: bool = False
    is_open: bool = False

    def __or__(self, other: "Kind") -> "Kind":
        return Kind(
            self.classes | other.classes,
            self.made | other.made,
            self.is_other or other.is_other,
            self.is_open or other.is_open,
        )

    @property
    def is_class(self) -> bool:
        """Whether it is a class of cells, known or unknown."""
        return bool(self.classes) and not (self.made or self.is_other)

    @property
    def is_cell(self) -> bool:
        """Whether it is a cell, whatever call makes it."""
        return bool(self.made) and not (self.classes or self.is_other or self.is_open)

    @property
    def cell_class(self) -> CellClass | None:
        """The one class of cells that it can be, or None."""
        is_one = self.is_class and not self.is_open and len(self.classes) == 1
        return next(iter(self.classes)) if is_one else None

    @property
    def constructor(self) -> ast.Call | None:
        """The one call that can make it, if it is a cell."""
        return next(iter(self.made)) if self.is_cell and len(self.made) == 1 else None


OTHER, OPEN = Kind(is_other=True), Kind(is_open=True)
SOME_CLASS, SOME_CELL = Kind(frozenset({None})), Kind(made=frozenset({None}))


class Kinds:
    """Finds the kinds of expressions.

    Args:
      names: of the file.
    """

    def __init__(self, names: Names):
        self.names = names
        self._known: dict[ast.AST, Kind] = {}

    def of(self, node: ast.expr) -> Kind:
        """Returns what an expression may be."""
        if node not in self._known:
            # An expression that depends on itself adds no further value.
            self._known[node] = Kind()
            self._known[node] = self._of(node)
        return self._known[node]

    def linen(self, node: ast.expr) -> str | None:
        """Returns the name in `flax.linen` of what an expression is, lifted or not."""
        return linen_name(self.names.qualified(unlifted(self.names, node)))

    def _any_of(self, nodes: list[ast.expr]) -> Kind:
        kinds = [self.of(node) for node in nodes if not is_none(node)]
        return reduce(Kind.__or__, kinds) if kinds else OPEN

    def _of(self, node: ast.expr) -> Kind:
        if isinstance(node, ast.IfExp):
            return self._any_of([node.body, node.orelse])
        if isinstance(node, ast.BoolOp):
            return self._any_of(node.values)
        if isinstance(node, ast.NamedExpr):
            return self.of(node.value)
        if isinstance(node, ast.Subscript):
            return self._of_element(node.value)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        if isinstance(node, ast.Name | ast.Attribute):
            return self._of_name(node)
        return OTHER

    def _of_name(self, node: ast.Name | ast.Attribute) -> Kind:
        qualified = self.names.qualified(node)
        if qualified is not None:
            return _of_qualified(qualified)
        if isinstance(node, ast.Name):
            found = self.names.lookup(node.id, node)
            kinds = [self._of_binding(b) for b in found if not b.is_none]
            return reduce(Kind.__or__, kinds) if kinds else OPEN
        is_known = self.names.is_of_class(node) or class_of(self.names, node.value)
        return self._of_attribute(node) if is_known else OPEN

    def _of_attribute(self, node: ast.Attribute) -> Kind:
        """Returns the kind of an attribute of `self`, or of a class."""
        values = self.names.attribute_values(node)
        kind = self._any_of(values) if values else Kind()
        for field in self.names.fields(node):
            if field.annotation is not None:
                kind |= self._of_typed(field.annotation, field.value)
                continue
            set_to = self._of_binding(field)
            # A derived class may hold another class of cells.
            kind |= replace(set_to, is_open=set_to.is_open or bool(set_to.classes))
        return OPEN if kind == Kind() else kind

    def _of_binding(self, binding: Binding) -> Kind:
        if binding.imported is not None:
            return _of_qualified(binding.imported)
        if binding.value is not None:
            return self._any_of([binding.value])
        if isinstance(binding.node, ast.ClassDef):
            return self._of_subclass(binding.node)
        if binding.is_parameter:
            return self._of_typed(binding.annotation, binding.default)
        if binding.element_of is not None:
            return self._of_element(binding.element_of)
        return OPEN

    def _of_element(self, node: ast.expr) -> Kind:
        """Returns the kind of the elements of a list, tuple, set or dict."""
        is_open = last_name(node) in self.names.changed
        values = [self.names.value(node)]
        if self.names.is_of_class(node):
            fields = self.names.fields(node)
            values = self.names.attribute_values(node) + [f.value for f in fields]
            is_open = is_open or bool(fields)
        displays = [elements(value) for value in values]
        held = [element for display in displays for element in display]
        kind = self._any_of(held) if held else OPEN
        return kind if all(displays) and not is_open else kind | OPEN

    def _of_typed(self, annotation: ast.expr | None, default: ast.expr | None) -> Kind:
        """Returns the kind of a parameter or field, by its annotation and default."""
        kind = OPEN if default is None else self._any_of([default])
        # Callers may pass something else.
        kind = replace(kind, is_other=False, is_open=True)
        for part in ast.walk(annotation) if annotation is not None else ():
            is_type = isinstance(part, ast.Subscript) and last_name(part.value) in (
                "Type",
                "type",
            )
            if is_type and self._is_module(part.slice):
                return SOME_CLASS | kind
        if annotation is not None and self.of(annotation).classes:
            return SOME_CELL
        return OTHER if self._is_another(annotation) else kind

    def _is_another(self, annotation: ast.expr | None) -> bool:
        """Returns whether an annotation is a class unrelated to cells."""
        if not isinstance(annotation, ast.Name | ast.Attribute):
            return False
        qualified = self.names.qualified(annotation)
        if qualified is None:
            found = self.names.only(annotation)
            return found is not None and isinstance(found.node, ast.ClassDef)
        is_class = qualified.rpartition(".")[2][:1].isupper()
        return is_class and not qualified.startswith(OPEN_TYPES)

    def _is_module(self, node: ast.expr) -> bool:
        return bool(self.of(node).classes) or self.linen(node) in MODULES

    def _of_subclass(self, node: ast.ClassDef) -> Kind:
        own = own_cell(self.names, node)
        if own is not None and not own.why_not:
            known = {"method": own.method, "is_required": own.is_required}
            return Kind(frozenset({CellClass(node.name, 0, **known)}))
        bases = reduce(Kind.__or__, map(self.of, node.bases), Kind())
        fields = {
            getattr(statement.target, "id", "")
            for statement in node.body
            if isinstance(statement, ast.AnnAssign)
        }
        if not bases.classes:
            return OTHER
        changes = CHANGES & set(self.names.scopes[node].names)
        if "features" in fields:
            # Its carries may still be in the old form.
            return OTHER if "initialize_carry" in changes else OTHER | OPEN
        if changes or len(node.bases) > 1:
            return SOME_CLASS
        return Kind(bases.classes)

    def _of_call(self, node: ast.Call) -> Kind:
        name = self.names.function_name(node)
        if name == "getattr" and node.args:
            return self._of_getattr(node)
        if name in PARTIAL and node.args and self.of(node.args[0]).classes:
            return OTHER if self._gives_features(node) else SOME_CLASS
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            held = elements(self.names.value(node.func.value))
            if held:
                return self._any_of([*held, *node.args[1:]])
        lift, options = lifting(self.names, node.func)
        if lift and node.args:
            return self._of_lifted(node, lift, [*options, *node.keywords])
        made = self.of(node.func)
        if made.cell_class is not None:
            return Kind(made=frozenset({node}))
        if made.is_class:
            return SOME_CELL | OPEN if made.is_open else SOME_CELL
        is_class = (name.rpartition(".")[2][:1]).isupper()
        return OTHER if made.is_other and not made.classes and is_class else OPEN

    def _gives_features(self, partial: ast.Call) -> bool:
        """Returns whether `partial` gives a class the width that old classes lack."""
        classes = self.of(partial.args[0]).classes
        if any(c is None or c.has_features or c.is_own for c in classes):
            return False
        return any(isinstance(arg, ast.Constant) for arg in partial.args[1:2]) or any(
            keyword.arg == "features" for keyword in partial.keywords
        )

    def _of_getattr(self, node: ast.Call) -> Kind:
        if self.names.is_self(node.args[0]):
            return OPEN
        module = self.names.qualified(node.args[0])
        return SOME_CLASS if module in PACKAGES else OPEN

    def _of_lifted(self, node: ast.Call, lift: str, options: list[ast.keyword]) -> Kind:
        inner = self.of(node.args[0])
        cell = inner.cell_class
        if cell is None or lift not in LIFTS:
            return SOME_CLASS if inner.classes else OPEN
        # After the class and two dicts, positional arguments are axes.
        by_position = len(node.args) > 3 or any(
            isinstance(argument, ast.Starred) for argument in node.args
        )
        keeps = cell.keeps_last_axis and not (
            lift == "vmap" and (by_position or any(map(may_be_last_axis, options)))
        )
        lifts = (*cell.lifts, lift)
        return Kind(frozenset({replace(cell, lifts=lifts, keeps_last_axis=keeps)}))


def _of_qualified(qualified: str) -> Kind:
    name = linen_name(qualified)
    if name in PARTS or name in CONVOLUTIONAL:
        cell = CellClass(name, {**PARTS, **CONVOLUTIONAL}[name])
        return Kind(frozenset({cell}))
    return OTHER


def elements(node: ast.expr) -> list[ast.expr]:
    """Returns the elements of a list, tuple, set or dict that an expression makes."""
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [e for e in node.elts if not isinstance(e, ast.Starred)]
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        return [node.elt]
    if isinstance(node, ast.DictComp):
        return [node.value]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*elements(node.left), *elements(node.right)]
    function, args = getattr(node, "func", None), getattr(node, "args", [])
    if getattr(function, "id", "") in ("list", "tuple") and len(args) == 1:
        return elements(args[0])
    return []


def may_be_last_axis(option: ast.keyword) -> bool:
    """Returns whether the axes of a transformation may include the last one."""
    # An unpacked dict has no name here.
    if option.arg not in ("in_axes", "out_axes", None):
        return False
    # In a carry with a batch axis, axis 1 can be the last.
    return not all(
        isinstance(node, ast.Tuple | ast.Load)
        or (isinstance(node, ast.Constant) and node.value in (0, None))
        for node in ast.walk(option.value)
    )
