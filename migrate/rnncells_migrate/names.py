"""What names stand for: imports of Flax, aliases, and the values of variables."""

from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import ImportAssignment

from rnncells_migrate.tree import Tree

FLAX = "flax.linen"
SHIM = "rnncells.legacy"


class Names(Tree):
    """A module whose names are resolved, without following the flow of data."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._pending: set[cst.CSTNode] = set()
        self.places: dict[str, list[Any]] = {}
        self.attributes: dict[tuple, list[Any]] = {}
        self.stars: list[str] = []
        for node in self.nodes:
            if self_attribute(node) or self.scope(node) and last_name(node):
                self.places.setdefault(last_name(node), []).append(node)
            is_changed = isinstance(node, cst.AugAssign)
            for target in [node.target] if is_changed else targets(node):
                if self_attribute(target):
                    values = self.attributes.setdefault(self.variable(target), [])
                    values.append(None if is_changed else node.value)
            if isinstance(getattr(node, "names", None), cst.ImportStar):
                self.stars.append(plain(get_full_name_for_node(node.module) or ""))

    def bound(self, node: cst.CSTNode, place: cst.CSTNode | None = None) -> set[Any]:
        """Returns the nodes that bind a name, as it is seen from a place."""
        scope = self.scope(place or node)
        is_name = isinstance(node, cst.Name) and scope is not None
        nodes = {getattr(a, "node", None) for a in scope[node.value]} if is_name else ()
        return set(nodes) - {None}

    def variable(self, node: cst.CSTNode) -> Any:
        """Returns what identifies the variable of a name or of `self.name`, or None."""
        if self_attribute(node):
            return self.nearest(node, cst.ClassDef), self_attribute(node)
        return self.bound(node) or None

    def qualified(self, node: cst.CSTNode) -> str:
        """Returns the full name of what an expression stands for, or "".

        Names of the shim, and of submodules of Flax, are those of `flax.linen`.
        """
        if node in self._pending:
            return ""
        self._pending.add(node)
        try:
            return plain(self._qualified(node))
        finally:
            self._pending.discard(node)

    def _qualified(self, node: cst.CSTNode) -> str:
        if isinstance(node, cst.Attribute):
            base = self.qualified(node.value)
            if base:
                return f"{base}.{node.attr.value}"
        elif isinstance(node, cst.Name):
            imported = self._imported(node)
            if imported:
                return imported
        value = self.value(node)
        return self.qualified(value) if value is not None else ""

    def _imported(self, name: cst.Name) -> str:
        """Returns what a name is imported as; it may also be None, without Flax."""
        scope = self.scope(name)
        assigned = scope[name.value] if scope is not None else ()
        # Another `import *` could replace the names of Flax.
        if scope is not None and not assigned and self.stars == [FLAX]:
            return f"{FLAX}.{name.value}"
        imports = [a for a in assigned if isinstance(a, ImportAssignment)]
        names = {q for a in imports for q in a.get_qualified_names_for(name.value)}
        full = {plain(qualified.name) for qualified in names}
        values = [v for v in self.values(name) if v is None or self.code(v) != "None"]
        return full.pop() if len(full) == 1 and len(values) <= len(imports) else ""

    def _assigned(self, node: cst.CSTNode) -> Any:
        """Returns the value of `name = value` and `name := value`; else None."""
        parent = self.parent(node)
        if isinstance(parent, cst.AssignTarget):
            parent = self.parent(parent)
        return parent.value if node in targets(parent) else None

    def values(self, node: cst.CSTNode) -> list[Any]:
        """Returns the values of a variable or of `self.name`; None is not known."""
        if isinstance(node, cst.Name):
            return [self._assigned(bound) for bound in self.bound(node)]
        is_known = self_attribute(node) != ""
        return self.attributes.get(self.variable(node), []) if is_known else []

    def value(self, node: cst.CSTNode) -> Any:
        """Returns the one value of a variable, or None."""
        values = self.values(node)
        return values[0] if len(values) == 1 else None

    def iterated(self, node: cst.CSTNode) -> list[Any]:
        """Returns what the loops iterate over whose variable a name is."""
        bound = self.bound(node)
        loops = [(n, self.nearest(n, cst.For, cst.CompFor)) for n in bound]
        return [loop.iter for n, loop in loops if loop and n in names_in(loop.target)]

    def local_class(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Returns the class of this module that an expression stands for."""
        bound = [*self.bound(node)]
        is_class = len(bound) == 1 and isinstance(bound[0], cst.ClassDef)
        return bound[0] if is_class else None


def targets(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Returns the targets of `target = value` and `target := value`."""
    if isinstance(node, cst.Assign):
        return [target.target for target in node.targets]
    return [node.target] if isinstance(node, cst.AnnAssign | cst.NamedExpr) else []


def names_in(node: cst.CSTNode) -> list[cst.Name]:
    """Returns the names in an expression that are not those of attributes."""
    if isinstance(node, cst.Name):
        return [node]
    children = [node.value] if isinstance(node, cst.Attribute) else node.children
    return [name for child in children for name in names_in(child)]


def self_attribute(node: cst.CSTNode) -> str:
    """Returns the name of `self.name`, else ""."""
    is_self = isinstance(node, cst.Attribute) and last_name(node.value) == "self"
    return last_name(node) if is_self and isinstance(node.value, cst.Name) else ""


def last_name(node: cst.CSTNode) -> str:
    """Returns the last name of an expression, such as `cell` of `self.cell[0]`."""
    if isinstance(node, cst.Subscript):
        return last_name(node.value)
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def plain(name: str) -> str:
    """Returns a full name with the shim and submodules taken for `flax.linen`."""
    for module in (SHIM, f"{FLAX}.recurrent", f"{FLAX}.transforms"):
        if f"{name}.".startswith(f"{module}."):
            name = FLAX + name.removeprefix(module)
    return name
