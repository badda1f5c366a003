"""RC06: own cells whose static `initialize_carry` becomes an instance method.

The class also gets the fields `features` and `carry_init`, and `num_feature_axes`.
"""

from collections.abc import Callable
from typing import Any

import libcst as cst

from rnncells_migrate.carries import NAME, OLD_ARGUMENTS
from rnncells_migrate.changes import Changes
from rnncells_migrate.names import FLAX, Names, last_name
from rnncells_migrate.tree import walk

BY_HAND = (
    "a static `initialize_carry` has no place in today's Flax: write "
    "`initialize_carry(self, rng, input_shape)` with the fields `features` and "
    "`carry_init`, and the property `num_feature_axes`"
)
ADDED = {"features", "carry_init", "num_feature_axes"}
AXES = "\n@property\ndef num_feature_axes(self):\n    return 1\n"
METHOD = "@{}.nowrap\ndef initialize_carry(self, rng, input_shape):\n    pass\n"


def rewrite_own_cells(names: Names, changes: Changes) -> None:
    """Rewrites the own cells of the form that is known, and marks the others."""
    for node in names.nodes:
        carry = old_carry(names, node)
        if carry is None or names.is_left(carry) or names.is_left(node):
            continue
        if is_plain(names, node):
            changes.edit("RC06", node, _edit(names, node, carry))
        else:
            changes.mark("RC06", carry, BY_HAND)


def old_carry(names: Names, node: cst.CSTNode) -> Any:
    """Returns the static `initialize_carry` of a class of cells, or None."""
    if not isinstance(node, cst.ClassDef):
        return None
    bases = [names.qualified(base.value) for base in node.bases]
    for method in node.body.body if f"{FLAX}.RNNCellBase" in bases else ():
        if isinstance(method, cst.FunctionDef) and method.name.value == NAME:
            decorators = [last_name(d.decorator) for d in method.decorators]
            has_sizes = len(method.params.params) > 2
            return method if decorators == ["staticmethod"] and has_sizes else None
    return None


def is_plain(names: Names, node: cst.ClassDef) -> bool:
    """Returns whether an own cell has the form that the rewrite knows.

    Its batch is a tuple, no other class derives from it, and it can be constructed
    without arguments.
    """
    carry = old_carry(names, node)
    if carry is None or names.is_left(carry) or names.is_left(node):
        return False
    params = carry.params.params
    known = [(name, name == "init_fn") for name in OLD_ARGUMENTS][: len(params)]
    has_form = [(p.name.value, p.default is not None) for p in params] == known
    body = names.code(carry.body)
    is_tuple = "batch_dims + (size,)" in body or "(*batch_dims, size)" in body
    text = names.code(node)
    is_called = any(f"{word}.{NAME}" in text for word in ("self", "cls", "super()"))
    is_base = any(
        node.name.value == last_name(base.value)
        for other in names.nodes
        if isinstance(other, cst.ClassDef)
        for base in other.bases
    )
    fields = [n for n in walk(node) if isinstance(n, cst.AnnAssign)]
    is_complete = all(field.value is not None for field in fields)
    is_alone = not ADDED & defined_names(node) and not is_called and not is_base
    has_module = _module(names, node) != ""
    return has_form and is_tuple and is_complete and is_alone and has_module


def _module(names: Names, node: cst.ClassDef) -> str:
    """Returns the name of `flax.linen` in the file, or ""."""
    base = node.bases[0].value
    if isinstance(base, cst.Attribute):
        return names.code(base.value)
    modules = (n for n, (p, *_) in names.places.items() if names.qualified(p) == FLAX)
    return next(modules, "")


def _edit(names: Names, node: cst.ClassDef, carry: cst.FunctionDef) -> Callable:
    """Returns the function that rewrites a class with an old `initialize_carry`."""
    module = _module(names, node)
    config = names.module.config_for_parsing
    init_fns = [param.default for param in carry.params.params[3:]]
    axes = cst.parse_statement(AXES, config)
    new = cst.parse_statement(METHOD.format(module), config)
    fields = [cst.parse_statement("features: int = None", config)]
    lines = ["batch_dims, size = input_shape[:-1], self.features"]
    for init_fn in init_fns:
        text = f"carry_init: object = {names.code(init_fn)}"
        fields.append(cst.parse_statement(text, config))
        lines.append("init_fn = self.carry_init")
    added = [cst.parse_statement(line, config) for line in lines]

    def edit(node: cst.ClassDef) -> cst.ClassDef:
        body = list(node.body.body)
        names = [getattr(getattr(part, "name", None), "value", "") for part in body]
        at = names.index(NAME)
        inner = list(body[at].body.body)
        first = 1 if body[at].get_docstring() is not None else 0
        inner[first:first] = added
        suite = body[at].body.with_changes(body=inner)
        method = {"decorators": new.decorators, "params": new.params, "body": suite}
        body[at : at + 1] = [body[at].with_changes(**method), axes]
        lines = [isinstance(part, cst.SimpleStatementLine) for part in body]
        first = lines.index(False)
        if first == 0:
            space = [cst.EmptyLine(indent=False), *body[0].leading_lines]
            body[0] = body[0].with_changes(leading_lines=space)
        body[first:first] = fields
        return node.with_changes(body=node.body.with_changes(body=body))

    return edit


def defined_names(definition: cst.ClassDef) -> set[str]:
    """Returns the names of the fields and methods in the body of a class."""
    names = set()
    for statement in definition.body.body:
        is_line = isinstance(statement, cst.SimpleStatementLine)
        for node in statement.body if is_line else [statement]:
            if isinstance(node, cst.AnnAssign):
                names.add(last_name(node.target))
            elif isinstance(node, cst.Assign):
                names |= {last_name(target.target) for target in node.targets}
            elif isinstance(node, cst.FunctionDef):
                names.add(node.name.value)
    return names
