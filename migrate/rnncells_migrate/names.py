"""What names stand for: imports of Flax, aliases, and the values of variables."""

import libcst as cst
from libcst.metadata import Assignment, BaseAssignment, ImportAssignment

from rnncells_migrate.tree import Tree

FLAX = "flax.linen"
SHIM = "rnncells.legacy"
# Names that `from flax.linen import *` brings.
STARRED = {
    *("LSTMCell", "OptimizedLSTMCell", "GRUCell", "ConvLSTMCell", "ConvLSTM"),
    *("RNN", "Bidirectional", "RNNCellBase", "scan", "remat", "vmap", "jit"),
}


class Names:
    """The meaning of the names in a module, without following the flow of data."""

    def __init__(self, tree: Tree):
        self.tree = tree
        self._pending: set[cst.CSTNode] = set()
        self.has_star = self._imports_star()
        self.attributes = self._assigned_attributes()

    def _imports_star(self) -> bool:
        """Returns whether all names of Flax are imported, and of no other module."""
        modules = [
            cst.helpers.get_full_name_for_node(node.module)
            for node in self.tree.nodes
            if isinstance(node, cst.ImportFrom)
            and isinstance(node.names, cst.ImportStar)
            and node.module is not None
        ]
        return len(modules) == 1 and f"{plain(modules[0])}." == f"{FLAX}."

    def _assigned_attributes(self) -> dict[tuple, list[cst.BaseExpression]]:
        """The values of `self.name = value`, by the class and the name."""
        values: dict[tuple, list] = {}
        for node in self.tree.nodes:
            if isinstance(node, cst.Assign | cst.AnnAssign):
                for target in targets(node):
                    name = self_attribute(target)
                    if name:
                        key = (self.tree.class_of(node), name)
                        values.setdefault(key, []).append(node.value)
        return values

    def assignments(self, name: cst.Name) -> set[BaseAssignment]:
        scope = self.tree.scope(name)
        return set(scope[name.value]) if scope is not None else set()

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
        if isinstance(node, cst.Call):
            return self._of_getattr(node)
        if isinstance(node, cst.Name):
            assigned = self.assignments(node)
            if not assigned and self.has_star and node.value in STARRED:
                return f"{FLAX}.{node.value}"
            imported = self._imported(node, assigned)
            if imported:
                return imported
        value = self.value(node)
        return self.qualified(value) if value is not None else ""

    def _of_getattr(self, call: cst.Call) -> str:
        """Returns the full name of `getattr(nn, "LSTMCell")`, or ""."""
        is_getattr = isinstance(call.func, cst.Name) and call.func.value == "getattr"
        if not is_getattr or len(call.args) != 2:
            return ""
        name = call.args[1].value
        base = self.qualified(call.args[0].value)
        if not base or not isinstance(name, cst.SimpleString):
            return ""
        return f"{base}.{name.evaluated_value}"

    def _imported(self, name: cst.Name, assigned: set[BaseAssignment]) -> str:
        """Returns what a name is imported as; it may also be None, without Flax."""
        full = {
            qualified.name
            for assignment in assigned
            if isinstance(assignment, ImportAssignment)
            for qualified in assignment.get_qualified_names_for(name.value)
        }
        rest = [a for a in assigned if not isinstance(a, ImportAssignment)]
        if len(full) == 1 and all(self._is_none(a) for a in rest):
            return full.pop()
        return ""

    def _is_none(self, assignment: BaseAssignment) -> bool:
        value = self.assigned_value(assignment)
        return isinstance(value, cst.Name) and value.value == "None"

    def assigned_value(self, assignment: BaseAssignment) -> cst.BaseExpression | None:
        """Returns the value of `name = value` and `name := value`; else None."""
        if not isinstance(assignment, Assignment):
            return None
        node = assignment.node
        parent = self.tree.parent(node)
        if isinstance(parent, cst.AssignTarget):
            parent = self.tree.parent(parent)
        if isinstance(parent, cst.Assign | cst.AnnAssign | cst.NamedExpr):
            if any(target is node for target in targets(parent)):
                return parent.value
        return None

    def values(self, node: cst.CSTNode) -> list[cst.BaseExpression | None]:
        """Returns the values of a variable or of `self.name`; None is not known."""
        if isinstance(node, cst.Name):
            return [self.assigned_value(a) for a in self.assignments(node)]
        name = self_attribute(node)
        if name:
            return list(self.attributes.get((self.tree.class_of(node), name), []))
        return []

    def value(self, node: cst.CSTNode) -> cst.BaseExpression | None:
        """Returns the one value of a variable, or None."""
        values = self.values(node)
        return values[0] if len(values) == 1 else None

    def iterated(self, node: cst.Name) -> list[cst.BaseExpression]:
        """Returns what the loops iterate over whose variable a name is."""
        loops = []
        for assignment in self.assignments(node):
            target = getattr(assignment, "node", None)
            loop = target and self.tree.nearest(target, cst.For, cst.CompFor)
            if loop is not None and any(n is target for n in loop_names(loop)):
                loops.append(loop.iter)
        return loops

    def local_class(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Returns the class of this module that an expression stands for."""
        if isinstance(node, cst.Name):
            nodes = [getattr(a, "node", None) for a in self.assignments(node)]
            if len(nodes) == 1 and isinstance(nodes[0], cst.ClassDef):
                return nodes[0]
        return None


def targets(node: cst.Assign | cst.AnnAssign | cst.NamedExpr) -> list[cst.CSTNode]:
    if isinstance(node, cst.Assign):
        return [target.target for target in node.targets]
    return [node.target]


def loop_names(loop: cst.For | cst.CompFor) -> list[cst.CSTNode]:
    """Returns the names that a loop binds, also in tuples."""
    stack, names = [loop.target], []
    while stack:
        node = stack.pop()
        if isinstance(node, cst.Tuple | cst.List):
            stack.extend(element.value for element in node.elements)
        else:
            names.append(node)
    return names


def self_attribute(node: cst.CSTNode) -> str:
    """Returns the name of `self.name`, else ""."""
    if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
        if node.value.value == "self":
            return node.attr.value
    return ""


def last_name(node: cst.CSTNode) -> str:
    """Returns the last name of an expression, such as `cell` of `self.cell[0]`."""
    if isinstance(node, cst.Subscript):
        return last_name(node.value)
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def plain(name: str) -> str:
    """Returns a full name with the shim and submodules taken for `flax.linen`."""
    if name == SHIM or name.startswith(f"{SHIM}."):
        name = FLAX + name.removeprefix(SHIM)
    for module in ("recurrent", "transforms"):
        if name == f"{FLAX}.{module}" or name.startswith(f"{FLAX}.{module}."):
            name = FLAX + name.removeprefix(f"{FLAX}.{module}")
    return name
