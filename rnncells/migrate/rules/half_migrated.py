"""Rules that flag code which is half new: it runs, and silently does something else."""

import ast
import re
from collections.abc import Iterator

from rnncells.migrate.code.carry_calls import is_carry_call, old_carry_call
from rnncells.migrate.code.names import argument
from rnncells.migrate.code.program import Program
from rnncells.migrate.rules.finding import Finding
from rnncells.migrate.rules.rewrites import is_compact

# What the size of a batch is called, and what it is not.
BATCH = re.compile(
    r"(?!.*(feature|hidden|embed))(.*batch|.*(env|agent|actor|worker|rollout)s?$|"
    r".*shape\[0\]|len\(|(.*[._])?(b|bs|bsz|n)$)",
    re.IGNORECASE | re.DOTALL,
)
BATCH_SHAPE = re.compile(r"shape\[:-?1\]$")


def batch_alone(program: Program) -> Iterator[Finding]:
    """RC11: `cell.initialize_carry(key, (batch,))`, a carry without a batch."""
    for call in program.calls:
        if not is_carry_call(call) or old_carry_call(program, call) is not None:
            continue
        made = program.constructor(call.func.value)
        shape = argument(call, "sample_input") or argument(call, "input_shape", 1)
        features = None if made is None else argument(made, "features", 0)
        if features is None or shape is None:
            continue
        if _is_of_a_batch(program, program.names.value(shape), features):
            why = (
                "the last number of a shape is that of features: the carry has no batch"
            )
            yield Finding("RC11", call, why=why)


def _is_of_a_batch(program: Program, shape: ast.expr, features: ast.expr) -> bool:
    """Says whether a shape is that of a batch, by what it is called."""
    text = program.source.text
    if isinstance(shape, ast.Subscript):
        return BATCH_SHAPE.search(text(shape)) is not None
    if not isinstance(shape, ast.Tuple | ast.List) or len(shape.elts) != 1:
        return False
    last = shape.elts[0]
    if isinstance(last, ast.Starred) or text(last) == text(features):
        return False
    return BATCH.match(text(last)) is not None


def carry_only_cells(program: Program) -> Iterator[Finding]:
    """RC13: a cell that takes a place, and a name, in the tree, for its carry alone."""
    for call in program.calls:
        function = program.function(call)
        if not isinstance(function, ast.FunctionDef) or not is_compact(
            program, function
        ):
            continue
        if program.cell_class(call.func) is None:
            continue
        if any(k.arg in ("parent", "name") for k in call.keywords):
            continue
        uses = [call]
        if isinstance(program.source.parents[call], ast.Assign | ast.AnnAssign):
            target = program.target(call)
            uses = [] if target is None else program.names.reads(target)
        if uses and all(_makes_a_carry(program, use) for use in uses):
            why = "it takes the number of the next cell in checkpoints: `parent=None`"
            yield Finding("RC13", call, why=why)


def _makes_a_carry(program: Program, use: ast.expr) -> bool:
    parent = program.source.parents[use]
    if not isinstance(parent, ast.Attribute):
        return False
    call = program.source.parents[parent]
    return is_carry_call(call) and call.func is parent


def private_names(program: Program) -> Iterator[Finding]:
    """RC08: what Flax has no longer."""
    for node in program.source.nodes:
        if isinstance(node, ast.Name | ast.Attribute):
            last = node.id if isinstance(node, ast.Name) else node.attr
            name = program.linen(node) if last in PRIVATE else None
        elif isinstance(node, ast.ImportFrom) and node.module == "flax.linen.recurrent":
            name = next((a.name for a in node.names if a.name in PRIVATE), None)
        else:
            continue
        if name in PRIVATE and not isinstance(
            program.source.parents.get(node), ast.Attribute
        ):
            yield Finding("RC08", node, why=f"`{name}` is private, and gone")


PRIVATE = ("_select_last", "_concatenate", "_expand_dims_like")
