"""RC06: own cells whose static `initialize_carry` becomes an instance method."""

import re
from typing import Any

import libcst as cst

from rnncells_migrate.changes import Changes
from rnncells_migrate.names import FLAX, Names
from rnncells_migrate.tree import walk

BY_HAND = "write `initialize_carry(self, rng, input_shape)` and `num_feature_axes`"
ARGUMENTS = re.compile(r"rng, batch_dims, size(, init_fn=[^,]*)?$")
# What shows that the batch is a tuple, and what the new class adds or must not use.
SHAPE = re.compile(r"batch_dims \+ \(size,\)|\(\*batch_dims, size\)")
OTHER = re.compile(
    r"\b(features|carry_init|num_feature_axes)\b|initialize_carry.*initialize_carry"
)
AXES = "\n@property\ndef num_feature_axes(self):\n    return 1\n"
METHOD = "@{}.nowrap\ndef initialize_carry(self, rng, input_shape): pass\n"


def rewrite_own_cells(names: Names, changes: Changes) -> None:
    """Rewrites the own cells of the form that is known, and marks the others."""
    for node in names.nodes:
        carry = old_carry(names, node)
        if carry is not None and is_plain(names, node):
            init_fns = [names.code(p.default) for p in carry.params.params[3:]]
            module = names.code(node.bases[0].value.value)
            config = names.module.config_for_parsing
            changes.edit("RC06", carry, _of_instance, init_fns, module, config)
        elif carry is not None:
            changes.mark("RC06", carry, BY_HAND)


def old_carry(names: Names, node: cst.CSTNode) -> Any:
    """Returns the static `initialize_carry` of a class of cells, or None."""
    if not isinstance(node, cst.ClassDef) or names.is_left(node):
        return None
    bases = [names.qualified(base.value) for base in node.bases]
    for method in node.body.body if f"{FLAX}.RNNCellBase" in bases else ():
        is_method = isinstance(method, cst.FunctionDef) and not names.is_left(method)
        if is_method and method.name.value == "initialize_carry":
            decorators = [names.code(d.decorator) for d in method.decorators]
            has_sizes = len(method.params.params) > 2
            return method if decorators == ["staticmethod"] and has_sizes else None
    return None


def is_plain(names: Names, node: cst.ClassDef) -> bool:
    """Returns whether an own cell has the form that the rewrite knows."""
    carry = old_carry(names, node)
    if carry is None or not isinstance(carry.body, cst.IndentedBlock):
        return False
    fields = [part for part in walk(node) if isinstance(part, cst.AnnAssign)]
    derived = re.search(rf"class \w+\([^)]*\b{node.name.value}\b", names.text)
    # No other class derives from it, and it can be constructed without arguments.
    return (
        ARGUMENTS.match(names.code(carry.params)) is not None
        and SHAPE.search(names.code(carry.body)) is not None
        and OTHER.search(names.code(node)) is None
        and derived is None
        and [type(base.value) for base in node.bases] == [cst.Attribute]
        and all(field.value is not None for field in fields)
    )


def _of_instance(
    carry: cst.FunctionDef, init_fns: list[str], module: str, config: Any
) -> cst.FlattenSentinel:
    """Returns today's `initialize_carry`, and what it needs of its class above it."""

    def parsed(*lines: str) -> list[Any]:
        return [cst.parse_statement(line, config) for line in lines]

    fields = parsed("features: int = None")
    head = parsed("batch_dims, size = input_shape[:-1], self.features")
    for init_fn in init_fns:
        fields += parsed(f"carry_init: object = {init_fn}")
        head += parsed("init_fn = self.carry_init")
    axes, method = parsed(AXES, METHOD.format(module))
    at = 1 if carry.get_docstring() is not None else 0
    body = [*carry.body.body[:at], *head, *carry.body.body[at:]]
    method = carry.with_changes(
        decorators=method.decorators,
        params=method.params,
        body=carry.body.with_changes(body=body),
        leading_lines=[cst.EmptyLine(indent=False)],
    )
    axes = axes.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    fields[0] = fields[0].with_changes(leading_lines=carry.leading_lines)
    return cst.FlattenSentinel([*fields, axes, method])
