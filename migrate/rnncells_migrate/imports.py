"""RC09: imports of the shim `rnncells.legacy` become imports of `flax.linen`."""

import libcst as cst
from libcst.helpers import get_full_name_for_node

from rnncells_migrate.changes import Changes
from rnncells_migrate.names import FLAX, SHIM, Names
from rnncells_migrate.tree import MARK, Tree

# Names that only the shim has.
ONLY_SHIM = {"ConvLSTM", "strict", "set_strict", "REMOVAL_DATE", "REMOVAL_VERSION"}
STILL_OLD = (
    "old forms are left in the file, which only the shim runs: resolve the other marks, "
    "then run the command again"
)
BY_HAND = "import `flax.linen` here: this form of the import is not rewritten"


class Imports:
    """The imports of the shim in a module."""

    def __init__(self, tree: Tree, names: Names):
        self.tree, self.names = tree, names
        self.nodes = [
            node
            for node in tree.nodes
            if isinstance(node, cst.Import | cst.ImportFrom) and self._is_of_shim(node)
        ]

    def _is_of_shim(self, node: cst.Import | cst.ImportFrom) -> bool:
        module = imported_module(node)
        if is_shim(module):
            return True
        names = node.names if not isinstance(node.names, cst.ImportStar) else ()
        full = [get_full_name_for_node(alias.name) for alias in names]
        if isinstance(node, cst.Import):
            return any(is_shim(name) for name in full)
        return module == "rnncells" and "legacy" in full

    def rewrite(self, changes: Changes) -> None:
        """Rewrites all imports of the shim, or marks the first one."""
        if not self.nodes:
            return
        why = self._why_not(changes)
        if why:
            if not self._marked():
                changes.mark("RC09", self.nodes[0], why)
            return
        for node in self.nodes:
            changes.edit("RC09", node, to_flax)
        changes.unmarked |= set(self._marked())
        for node in self.tree.nodes:
            if isinstance(node, cst.Attribute):
                if get_full_name_for_node(node) == SHIM and self.tree.scope(node):
                    changes.edit("RC09", node, lambda _: name_of(FLAX))

    def _marked(self) -> list[cst.CSTNode]:
        """Returns the imports that an earlier run marked."""
        return [
            self.tree.statement(node)
            for node in self.nodes
            if any(MARK in line for line in self.tree.comments_above(node))
        ]

    def _why_not(self, changes: Changes) -> str:
        """Returns why the shim has to stay; "" if it can go."""
        other = [line for line in self.tree.lines if MARK in line and "RC09" not in line]
        if changes.marks or other:
            return STILL_OLD
        if "segmentation_mask" in self.tree.text:
            return (
                "only the shim has `segmentation_mask`: write "
                "`seq_lengths=mask.sum(-1)`, then run the command again"
            )
        for node in self.tree.nodes:
            if isinstance(node, cst.Attribute | cst.ImportAlias):
                name = node.attr if isinstance(node, cst.Attribute) else node.name
                text = get_full_name_for_node(name)
                if text in ONLY_SHIM and self._is_shims(node):
                    return f"`{text}` is only in the shim: take it out"
        if any(self._has_other_names(node) for node in self.nodes):
            return BY_HAND
        return ""

    def _is_shims(self, node: cst.Attribute | cst.ImportAlias) -> bool:
        if isinstance(node, cst.ImportAlias):
            parent = self.tree.parent(node)
            return isinstance(parent, cst.ImportFrom) and parent in self.nodes
        is_renamed = node.attr.value == "ConvLSTM"
        return not is_renamed and self.names.qualified(node.value) == FLAX

    def _has_other_names(self, node: cst.Import | cst.ImportFrom) -> bool:
        """Returns whether an import has names of other modules, or the shim twice."""
        if isinstance(node, cst.ImportFrom):
            several = not is_shim(imported_module(node)) and len(node.names) > 1
        else:
            several = len(node.names) > 1
            alias = node.names[0]
            is_plain = alias.asname is None
            several = several or (is_plain and self._has_other_uses())
        return several or self.tree.is_left(node) and self.tree.statement(
            node
        ) not in self._marked()

    def _has_other_uses(self) -> bool:
        """Returns whether the file uses `rnncells`, imported as a whole, elsewhere."""
        for name in self.tree.names.get("rnncells", []):
            parent = self.tree.parent(name)
            full = get_full_name_for_node(parent) if parent is not None else None
            if full != SHIM:
                return True
        return False


def imported_module(node: cst.Import | cst.ImportFrom) -> str:
    """Returns the module of `from module import ...`, or ""."""
    if isinstance(node, cst.Import) or node.module is None or node.relative:
        return ""
    return get_full_name_for_node(node.module) or ""


def is_shim(name: str | None) -> bool:
    return f"{name}.".startswith(f"{SHIM}.")


def name_of(full: str) -> cst.BaseExpression:
    return cst.parse_expression(full)


def to_flax(node: cst.Import | cst.ImportFrom) -> cst.Import | cst.ImportFrom:
    """Returns an import of the shim as one of `flax.linen`."""
    module = imported_module(node)
    if is_shim(module):
        return node.with_changes(module=name_of(FLAX + module.removeprefix(SHIM)))
    alias = node.names[0]
    if isinstance(node, cst.Import):
        full = FLAX + get_full_name_for_node(alias.name).removeprefix(SHIM)
        return node.with_changes(names=[alias.with_changes(name=name_of(full))])
    asname = alias.asname or cst.AsName(cst.Name("legacy"))
    alias = alias.with_changes(name=cst.Name("linen"), asname=asname)
    return node.with_changes(module=cst.Name("flax"), names=[alias])
