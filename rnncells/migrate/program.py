"""A file with its names, and what rules ask of it."""

import ast
from functools import cached_property

from rnncells.migrate.cells import PACKAGES, CellClass, cell_class, linen_name
from rnncells.migrate.names import FUNCTIONS, SCOPES, Binding, Names
from rnncells.migrate.source import Source

# Functions of Python that do nothing but compute.
PURE = {"abs", "int", "len", "list", "max", "min", "round", "sum", "tuple"}
SIMPLE = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple),
    *(ast.List, ast.Starred, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp),
    *(ast.BoolOp, ast.Call, ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
    ast.expr_context,
)


class Program:
    """A file that is looked at by all rules.

    Args:
      source: the file.
    """

    def __init__(self, source: Source):
        self.source = source
        self.names = Names(source)
        self._classes: dict[ast.expr, CellClass | None] = {}

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls, in the order of the file."""
        found = [node for node in self.source.nodes if isinstance(node, ast.Call)]
        return sorted(found, key=lambda node: (self.source.end(node.func), node.lineno))

    def cell_class(self, node: ast.expr) -> CellClass | None:
        """Returns the class of cells that an expression is, if it is one."""
        if node not in self._classes:
            self._classes[node] = cell_class(self.names, node)
        return self._classes[node]

    def linen(self, node: ast.expr) -> str | None:
        """Returns the name in `flax.linen` of what an expression is."""
        return linen_name(self.names.qualified(self.names.value(node)))

    def constructor(self, node: ast.expr) -> ast.Call | None:
        """Returns the call that made a cell, which an expression is, if it is known."""
        node = self.names.value(node)
        if isinstance(node, ast.Call) and self.cell_class(node.func) is not None:
            return node
        if isinstance(node, ast.Attribute) and self.is_self(node.value):
            made = self.attribute_values(node)
            if len(made) == 1:
                return self.constructor(made[0])
        return None

    def is_some_class(self, node: ast.expr) -> bool:
        """Says whether an expression is a class of cells, but not which one."""
        if isinstance(node, ast.Call):
            is_getattr = isinstance(node.func, ast.Name) and node.func.id == "getattr"
            module = self.names.qualified(node.args[0]) if node.args else None
            return is_getattr and module in PACKAGES
        if isinstance(node, ast.Attribute) and self.is_self(node.value):
            return any(
                self.cell_class(part) is not None
                for field in self.fields(node)
                for part in (field.value, *_types_in(field.annotation))
                if part is not None
            )
        found = self.names.only(node)
        if found is None or not found.is_parameter:
            return False
        return found.default is not None and self.cell_class(found.default) is not None

    def is_function(self, node: ast.expr) -> bool:
        """Says whether an expression is a function, as far as can be told."""
        if isinstance(node, ast.Call):
            made = self.names.qualified(node.func) or getattr(node.func, "id", "")
            return made in ("functools.partial", "partial", "getattr")
        default, annotation = None, None
        if isinstance(node, ast.Attribute) and self.is_self(node.value):
            for field in self.fields(node):
                default, annotation = field.value, field.annotation
        found = self.names.only(node)
        if found is not None:
            default = found.default
        named = getattr(node, "attr", getattr(node, "id", ""))
        return (
            (
                default is not None
                and (self.names.qualified(default) or "").split(".")[0]
                in ("jax", "flax")
            )
            or (annotation is not None and "Callable" in ast.unparse(annotation))
            or named.endswith(("_fn", "activation", "gate"))
        )

    def is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == "self"

    def fields(self, node: ast.Attribute) -> list[ast.AnnAssign]:
        """Returns the fields that an attribute of `self` is, in the class around it."""
        around = self.source.around(node, ast.ClassDef)
        return [
            statement
            for statement in (around.body if around else ())
            if isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and statement.target.id == node.attr
        ]

    def attribute_values(self, node: ast.Attribute) -> list[ast.expr]:
        """Returns what an attribute of `self` is set to in the class around a node."""
        around = self.source.around(node, ast.ClassDef)
        return [
            statement.value
            for statement in (ast.walk(around) if around else ())
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Attribute)
            and self.is_self(target.value)
            and target.attr == node.attr
        ]

    def function(self, node: ast.AST) -> ast.AST:
        """Returns the function around a node, or the whole file."""
        return self.source.around(node, *FUNCTIONS) or self.source.tree

    def is_pure(self, node: ast.expr) -> bool:
        """Says whether an expression may be computed twice, or not at all."""
        return all(
            isinstance(part, SIMPLE)
            and (
                not isinstance(part, ast.Call)
                or (isinstance(part.func, ast.Name) and part.func.id in PURE)
            )
            for part in ast.walk(node)
        )

    def is_known_at(self, node: ast.expr, place: ast.AST) -> bool:
        """Says whether an expression has the same value at a place of the file."""
        if not self.is_pure(node):
            return False
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id not in PURE:
                if not self._is_bound_at(part, place):
                    return False
            if isinstance(part, ast.Attribute) and self.is_self(part.value):
                if not self._is_field_at(part, place):
                    return False
        return True

    def _is_bound_at(self, name: ast.Name, place: ast.AST) -> bool:
        found = self.names.lookup(name.id, name)
        if found != self.names.lookup(name.id, place) or len(found) != 1:
            return self.is_self(name) and self._has_self(place)
        return self.comes_before(found[0], place)

    def _has_self(self, place: ast.AST) -> bool:
        around = self.function(place)
        return not isinstance(around, ast.Module) and any(
            arg.arg == "self" for arg in around.args.args
        )

    def comes_before(self, binding: Binding, place: ast.AST) -> bool:
        """Says whether a name is bound by the time that a place is run."""
        if binding.is_parameter or binding.imported:
            return True
        scope = self.names.scope_node(binding.node)
        if scope is not self.names.scope_node(place) and isinstance(scope, ast.Module):
            return True
        if isinstance(scope, SCOPES[5:]):
            return True
        source = self.source
        if isinstance(binding.node, ast.For):
            return any(place in ast.walk(inner) for inner in binding.node.body)
        if isinstance(binding.node, ast.NamedExpr):
            return source.end(binding.node) <= source.start(place)
        return source.end(source.statement(binding.node)) <= source.start(
            source.statement(place)
        )

    def _is_field_at(self, node: ast.Attribute, place: ast.AST) -> bool:
        """Says whether an attribute of `self` is there, and the same, at a place."""
        around = self.source.around(place, ast.ClassDef)
        if around is None or around is not self.source.around(node, ast.ClassDef):
            return False
        function = self.function(place)
        values = self.attribute_values(node)
        if len(values) == 1 and self.function(values[0]) is function:
            return self.source.end(values[0]) <= self.source.start(place)
        if self.function(node) is function:
            return True
        return bool(self.fields(node))


def _types_in(annotation: ast.expr) -> list[ast.expr]:
    """Returns what stands in `Type[...]` and `type[...]`."""
    return [
        part.slice
        for part in ast.walk(annotation)
        if isinstance(part, ast.Subscript)
        and getattr(part.value, "id", getattr(part.value, "attr", ""))
        in ("Type", "type")
    ]
