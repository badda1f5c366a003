"""RC07: `segmentation_mask`."""

import ast
import re
from collections.abc import Iterator

from rnncells.migrate.code.names import last_name
from rnncells.migrate.code.program import Program
from rnncells.migrate.code.source import Edit
from rnncells.migrate.code.widths import METHODS
from rnncells.migrate.rules.arguments import outer
from rnncells.migrate.rules.finding import Finding

LAYER = re.compile(r"(^|_)(rnn|lstm|gru|bidirectional)s?$")


def masks(program: Program) -> Iterator[Finding]:
    """Yields what each mask becomes: integers, 1 at the first steps of each row."""
    for call in program.calls:
        for keyword in call.keywords:
            is_layer = keyword.arg == "segmentation_mask" and _is_layer(program, call)
            if is_layer is False:
                continue
            is_plain = isinstance(keyword.value, ast.Name | ast.Attribute)
            why = ""
            if is_layer is None:
                why = "whether it is a layer of Flax is not known"
            elif not is_plain and not _is_array(program, keyword.value):
                why = "it may be None, and without a mask there are no lengths"
            edits = [] if why else _to_lengths(program, keyword)
            yield Finding("RC07", keyword.value, edits, why)


def _is_layer(program: Program, call: ast.Call) -> bool | None:
    """Says whether a call is that of an RNN, or one of its methods; None: perhaps."""
    layer = call.func
    if isinstance(layer, ast.Attribute) and layer.attr in METHODS:
        layer = layer.value
    layers = [program.names.value(layer)]
    if isinstance(layer, ast.Attribute) and program.names.is_self(layer.value):
        layers = program.names.attribute_values(layer)
    made = [m.func for m in layers if isinstance(m, ast.Call)]
    if len(made) == len(layers) > 0:
        if all(program.linen(m) in ("RNN", "Bidirectional") for m in made):
            return True
    is_another = any(last_name(function)[:1].isupper() for function in made)
    return None if LAYER.search(last_name(layer)) and not is_another else False


def _is_array(program: Program, node: ast.expr) -> bool:
    """Says whether a value is an array for sure, not None."""
    node = program.names.value(node)
    if isinstance(node, ast.Call):
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "astype"
        function = program.names.qualified(node.func) or ""
        return is_method or function.startswith("jax.")
    return isinstance(node, ast.Compare | ast.BinOp | ast.UnaryOp)


def _to_lengths(program: Program, keyword: ast.keyword) -> list[Edit]:
    at, end = outer(program, keyword.value)
    edits = [Edit(*program.source.name_of(keyword), "seq_lengths")]
    if not _is_array(program, keyword.value):
        text = program.source.text(keyword.value)
        edits.append(Edit(at, at, f"None if {text} is None else "))
    if isinstance(keyword.value, ast.Name | ast.Attribute | ast.Call):
        return [*edits, Edit(end, end, ".sum(-1)")]
    return [*edits, Edit(at, at, "("), Edit(end, end, ").sum(-1)")]
