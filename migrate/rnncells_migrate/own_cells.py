"""RC06: own cells whose static `initialize_carry` becomes an instance method.

The class also gets the fields `features` and `carry_init`, and `num_feature_axes`.
"""

import libcst as cst

from rnncells_migrate.carries import NAME, OLD_ARGUMENTS
from rnncells_migrate.cells import defined_names
from rnncells_migrate.changes import Changes
from rnncells_migrate.names import FLAX, Names, last_name
from rnncells_migrate.tree import Tree, walk

BY_HAND = (
    "a static `initialize_carry` has no place in today's Flax: write "
    "`initialize_carry(self, rng, input_shape)` with the fields `features` and "
    "`carry_init`, and the property `num_feature_axes`"
)
ADDED = {"features", "carry_init", "num_feature_axes"}
AXES = "@property\ndef num_feature_axes(self):\n{indent}return 1\n"


class OwnCells:
    """The own cells of a module that have a static `initialize_carry`."""

    def __init__(self, tree: Tree, names: Names):
        self.tree, self.names = tree, names
        self.old = [
            node
            for node in tree.nodes
            if isinstance(node, cst.ClassDef) and self._carry_of(node) is not None
        ]
        self.plain = [node for node in self.old if self._is_plain(node)]

    def rewrite(self, changes: Changes) -> None:
        """Rewrites the plain classes, and marks the others."""
        for node in self.old:
            carry = self._carry_of(node)
            if self.tree.is_left(carry) or self.tree.is_left(node):
                continue
            if node in self.plain:
                changes.edit("RC06", node, self._edit(node))
            else:
                changes.mark("RC06", carry, BY_HAND)

    def _carry_of(self, node: cst.ClassDef) -> cst.FunctionDef | None:
        """Returns the static method that creates the carry of an own cell."""
        bases = [self.names.qualified(base.value) for base in node.bases]
        if f"{FLAX}.RNNCellBase" not in bases:
            return None
        for method in node.body.body:
            if isinstance(method, cst.FunctionDef) and method.name.value == NAME:
                decorators = [last_name(d.decorator) for d in method.decorators]
                params = [param.name.value for param in method.params.params]
                is_old = params[:1] != ["self"] and len(params) > 2
                return method if decorators == ["staticmethod"] and is_old else None
        return None

    def _is_plain(self, node: cst.ClassDef) -> bool:
        """Returns whether a class has the form that the rewrite knows."""
        carry = self._carry_of(node)
        params = [param.name.value for param in carry.params.params]
        text = self.tree.code(carry.body)
        is_tuple = "batch_dims + (size,)" in text or "(*batch_dims, size)" in text
        is_known = tuple(params) in (OLD_ARGUMENTS[:3], OLD_ARGUMENTS)
        base = node.bases[0].value if len(node.bases) == 1 else None
        defaults = [param.default is not None for param in carry.params.params]
        return (
            is_tuple
            and is_known
            and defaults in ([False] * 3, [False] * 3 + [True])
            and (isinstance(base, cst.Attribute) or self._module() != "")
            and not ADDED & defined_names(node)
            and not has_required_field(node)
            and not self._is_extended(node)
            and not self.tree.is_left(carry)
            and not self.tree.is_left(node)
        )

    def _is_extended(self, node: cst.ClassDef) -> bool:
        """Returns whether others derive from a class, or it calls its own method."""
        name = node.name.value
        for other in self.tree.nodes:
            if isinstance(other, cst.ClassDef):
                if name in {last_name(base.value) for base in other.bases}:
                    return True
        return any(
            isinstance(part, cst.Attribute)
            and part.attr.value == NAME
            and last_name(part.value) in {"self", "cls", name}
            for part in walk(node)
        )

    def _module(self) -> str:
        """Returns the name by which the file imports `flax.linen`, or ""."""
        for name, places in self.tree.names.items():
            if self.names.qualified(places[0]) == FLAX:
                return name
        return ""

    def _edit(self, node: cst.ClassDef):
        carry, base = self._carry_of(node), node.bases[0].value
        is_attribute = isinstance(base, cst.Attribute)
        module = self.tree.code(base.value) if is_attribute else self._module()
        has_init_fn = len(carry.params.params) > 3
        indent = node.body.indent or self.tree.module.default_indent
        config = self.tree.module.config_for_parsing

        def edit(node: cst.ClassDef) -> cst.ClassDef:
            body = list(node.body.body)
            at = next(k for k, part in enumerate(body) if is_carry(part))
            init_fn = body[at].params.params[-1].default if has_init_fn else None
            body[at] = as_method(body[at], module, has_init_fn, config)
            axes = cst.parse_statement(AXES.format(indent=indent), config)
            axes = axes.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
            body.insert(at + 1, axes)
            first = first_method(body)
            if first == 0:
                body[0] = below_empty_line(body[0])
            body[first:first] = new_fields(init_fn, config)
            return node.with_changes(body=node.body.with_changes(body=body))

        return edit


def has_required_field(node: cst.ClassDef) -> bool:
    """Returns whether a class cannot be constructed without arguments."""
    fields = (getattr(line, "body", ()) for line in node.body.body)
    parts = (part for line in fields if isinstance(line, tuple | list) for part in line)
    return any(isinstance(p, cst.AnnAssign) and p.value is None for p in parts)


def is_carry(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.FunctionDef) and node.name.value == NAME


def as_method(
    carry: cst.FunctionDef,
    module: str,
    has_init_fn: bool,
    config: cst.PartialParserConfig,
) -> cst.FunctionDef:
    """Returns the method of an instance for a static `initialize_carry`."""
    lines = ["batch_dims, size = input_shape[:-1], self.features"]
    lines += ["init_fn = self.carry_init"] if has_init_fn else []
    body = list(carry.body.body)
    at = 1 if carry.get_docstring() is not None else 0
    body[at:at] = [cst.parse_statement(line, config) for line in lines]
    decorator = carry.decorators[0].with_changes(
        decorator=cst.parse_expression(f"{module}.nowrap")
    )
    names = ("self", "rng", "input_shape")
    params = cst.Parameters([cst.Param(cst.Name(name)) for name in names])
    return carry.with_changes(
        decorators=[decorator],
        params=params,
        body=carry.body.with_changes(body=body),
    )


def first_method(body: list[cst.BaseStatement]) -> int:
    """Returns the index behind the docstring and the fields at the start of a class."""
    lines = (isinstance(part, cst.SimpleStatementLine) for part in body)
    return next(index for index, is_line in enumerate(lines) if not is_line)


def below_empty_line(statement: cst.FunctionDef) -> cst.FunctionDef:
    lines = [cst.EmptyLine(indent=False), *statement.leading_lines]
    return statement.with_changes(leading_lines=lines)


def new_fields(
    init_fn: cst.BaseExpression | None, config: cst.PartialParserConfig
) -> list[cst.BaseStatement]:
    """Returns the fields `features` and `carry_init`, for the default of `init_fn`."""
    fields = [cst.parse_statement("features: int = None", config)]
    if init_fn is not None:
        field = cst.AnnAssign(
            cst.Name("carry_init"),
            cst.Annotation(cst.Name("object")),
            value=init_fn.deep_clone(),
        )
        fields.append(cst.SimpleStatementLine([field]))
    return fields
