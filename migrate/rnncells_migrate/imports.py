"""RC09: imports of the shim `rnncells.legacy` become imports of `flax.linen`."""

import re

import libcst as cst
from libcst.helpers import get_full_name_for_node

from rnncells_migrate.changes import Changes
from rnncells_migrate.names import FLAX, SHIM, Names
from rnncells_migrate.tree import MARK, SKIP

# Names that only the shim has.
ONLY_SHIM = re.compile(r"^(ConvLSTM|strict|set_strict|REMOVAL_DATE|REMOVAL_VERSION)$")
MODULE = re.compile(r"^from rnncells import legacy( as (\w+))?$")
STILL_OLD = "old forms are left, which only the shim runs: resolve the other marks"
MASKS = "only the shim has `segmentation_mask`: write `seq_lengths=mask.sum(-1)`"
ONLY_THERE = "`{}` is only in the shim: take it out"
BY_HAND = "import `flax.linen` here: this form of the import is not rewritten"


def rewrite_imports(names: Names, changes: Changes) -> None:
    """Rewrites all imports of the shim, or marks the first one."""
    kinds = (cst.Import, cst.ImportFrom)
    imports = [n for n in names.nodes if isinstance(n, kinds) and _is_of_shim(n)]
    why = _why_not(names, changes, imports) if imports else ""
    if why and not any(names.is_marked(node) for node in imports):
        changes.mark("RC09", imports[0], why)
    if why or not imports:
        return
    changes.unmarked = True
    for node in imports:
        changes.edit("RC09", node, _of_flax)
    for node in names.nodes:
        if get_full_name_for_node(node) == SHIM and names.scope(node) is not None:
            changes.edit("RC09", node, lambda _: cst.parse_expression(FLAX))


def _is_of_shim(node: cst.Import | cst.ImportFrom) -> bool:
    return re.search(r"\brnncells(\.| import .*\b)legacy\b", _text(node)) is not None


def _text(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _of_flax(node: cst.Import | cst.ImportFrom) -> cst.Import | cst.ImportFrom:
    """Returns an import of the shim as one of `flax.linen`."""
    text = _text(node).replace(SHIM, FLAX)
    text = MODULE.sub(lambda m: f"from flax import linen as {m[2] or 'legacy'}", text)
    return cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine).body[0]


def _why_not(names: Names, changes: Changes, imports: list[cst.CSTNode]) -> str:
    """Returns why the shim has to stay; "" if it can go."""
    left = [s for s in names.lines if SKIP in s or (MARK in s and "RC09" not in s)]
    if changes.marks or left:
        return STILL_OLD
    if "segmentation_mask" in names.text:
        return MASKS
    for node in names.nodes:
        is_name = isinstance(node, cst.Attribute) and ONLY_SHIM.match(node.attr.value)
        if is_name and names.qualified(node.value) == FLAX:
            if node.attr.value != "ConvLSTM" or names.is_left(node):
                return ONLY_THERE.format(node.attr.value)
    for node in imports:
        words = re.findall(r"\w+", _text(node))
        if any(ONLY_SHIM.match(word) for word in words):
            return ONLY_THERE.format(words[-1])
        is_plain = isinstance(node, cst.Import) and "as" not in words
        uses = [names.parent(use) for use in names.places.get("rnncells", [])]
        is_used = any(get_full_name_for_node(use) != SHIM for use in uses)
        is_used = is_used or names.nearest(node, cst.FunctionDef) is not None
        is_known = SHIM in _text(node) or MODULE.match(_text(node))
        if not is_known or (is_plain and is_used):
            return BY_HAND
    return ""
