"""A file with its names, and what the rules ask about it."""

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from rnncells.migrate.code.bindings import FUNCTIONS, bindings
from rnncells.migrate.code.cells import PARTIAL, CellClass
from rnncells.migrate.code.kinds import Kinds, elements
from rnncells.migrate.code.names import SCOPES, Binding, Names, last_name
from rnncells.migrate.code.sizes import Sizes
from rnncells.migrate.code.source import Source

# Libraries whose names are functions if they are the first argument of a cell.
LIBRARIES = ("jax", "flax", "rnncells")
# Built-in functions without effects.
PURE = {"abs", "int", "len", "list", "max", "min", "round", "sum", "tuple"}
SIMPLE = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple),
    *(ast.List, ast.Starred, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp),
    *(ast.BoolOp, ast.Call, ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
    ast.expr_context,
)


# Names of numbers of units or steps.
SIZE = re.compile(
    r"size|feature|hidden|dim|width|unit|channel|num|(^|_)n(_|$)|^[nh]$", re.IGNORECASE
)
# Names of counts, and of gate functions.
COUNT = re.compile(r"(^|_)(n|num|size|count)(_|$)", re.IGNORECASE)
FUNCTION = re.compile(
    r"((^|_)(act|fn|func|function|gate)|activation|nonlin[a-z]*)(?P<rest>(s|_.*)?)$",
    re.IGNORECASE,
)
CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
LAYERS = ("hidden", "unit", "channel")
# Modules with cells of linen, and with cells of nnx.
LINEN = ("flax.linen.", "rnncells.")
NNX = ("flax.nnx.", "flax.experimental.nnx.")


class Program:
    """A parsed file, as all rules see it.

    Args:
      source: the file.
    """

    def __init__(self, source: Source):
        self.source = source
        self.names = Names(source)
        self.kinds = Kinds(self.names)
        self._functions: dict[ast.expr, bool | None] = {}

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls, in the order of the file."""
        found = [node for node in self.source.nodes if isinstance(node, ast.Call)]
        return sorted(found, key=lambda node: (self.source.end(node.func), node.lineno))

    def cell_class(self, node: ast.expr) -> CellClass | None:
        """Returns the class of cells that an expression is, or None."""
        return self.kinds.of(node).cell_class

    def constructor(self, node: ast.expr) -> ast.Call | None:
        """Returns the call that made the cell an expression is, or None."""
        return self.kinds.of(node).constructor

    def target(self, call: ast.Call) -> ast.Name | ast.Attribute | None:
        """Returns the name, or attribute of `self`, that a call is assigned to."""
        parent, target = self.source.parents[call], None
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            target = parent.targets[0]
        elif isinstance(parent, ast.AnnAssign | ast.NamedExpr):
            target = parent.target
        if isinstance(target, ast.Attribute):
            return target if self.names.is_self(target.value) else None
        return target if isinstance(target, ast.Name) else None

    def linen(self, node: ast.expr) -> str | None:
        """Returns the name in `flax.linen` of what an expression is."""
        return self.kinds.linen(node)

    def is_function(self, node: ast.expr) -> bool | None:
        """Returns whether an argument is a function, not a number; None: not known."""
        if node not in self._functions:
            # A value that depends on itself says nothing.
            self._functions[node] = None
            self._functions[node] = self._is_function(node)
        return self._functions[node]

    def _is_function(self, node: ast.expr) -> bool | None:
        value, parts = self.names.value(node), []
        if isinstance(value, ast.IfExp):
            parts = [value.body, value.orelse]
        elif isinstance(value, ast.Subscript):
            parts = elements(self.names.value(value.value))
        if parts:
            known = _agreed([self.is_function(part) for part in parts])
        else:
            known = self._is_function_by_form(value)
        if known is None and node in self._sizes:
            return False
        return known if parts or known is not None else _is_function_by_name(value)

    @cached_property
    def _sizes(self) -> Sizes:
        return Sizes(self.names, self.kinds)

    def _is_function_by_form(self, node: ast.expr) -> bool | None:
        """Returns the same by the form of an expression, or a name's annotation."""
        if isinstance(node, ast.Lambda):
            return True
        if isinstance(node, ast.Constant | ast.BinOp | ast.UnaryOp):
            return False
        if isinstance(node, ast.Subscript) and last_name(node.value) == "shape":
            return False
        if isinstance(node, ast.Call):
            made = self.names.function_name(node)
            return True if made in PARTIAL else False if made in PURE else None
        default, annotation = None, None
        for field in self.names.fields(node) if self.names.is_of_class(node) else ():
            default, annotation = field.value, field.annotation
        found = self.names.only(node)
        if found is not None:
            default, annotation = found.default, found.annotation
            if isinstance(found.node, ast.FunctionDef) and not found.is_parameter:
                return True
        typed = "" if annotation is None else ast.unparse(annotation)
        if "Callable" in typed or any(map(self._is_of_a_library, (node, default))):
            return True
        is_number = isinstance(getattr(default, "value", None), int | float)
        return False if is_number or typed in ("int", "float") else None

    @cached_property
    def has_linen(self) -> bool:
        """Whether the file imports from `flax.linen` or rnncells."""
        return any(f"{name}.".startswith(LINEN) for name in self._taken)

    @cached_property
    def has_nnx(self) -> bool:
        """Whether the file imports from `flax.nnx`."""
        return any(f"{name}.".startswith(NNX) for name in self._taken)

    @cached_property
    def _taken(self) -> set[str | None]:
        """Full names of imported objects and of their attributes that the file uses."""
        found: set[str | None] = set()
        for node in self.source.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {known["imported"] for _, _, known in bindings(node)}
            elif isinstance(node, ast.Attribute):
                found.add(self.names.qualified(node))
        return found

    def _is_of_a_library(self, node: ast.expr) -> bool:
        return (self.names.qualified(node) or "").split(".")[0] in LIBRARIES

    def function(self, node: ast.AST) -> ast.AST:
        """Returns the function that evaluates a node, or the module.

        Defaults and decorators are evaluated where the function is defined.
        """
        scope = self.names.scope_node(node)
        while not isinstance(scope, (*FUNCTIONS, ast.Module)):
            scope = self.names.scope_node(scope)
        return scope

    def is_compact(self, function: ast.FunctionDef) -> bool:
        """Returns whether a function is a compact method of a module."""
        return any(self.linen(node) == "compact" for node in function.decorator_list)

    def is_pure(self, node: ast.expr) -> bool:
        """Returns whether an expression has no effects and may be evaluated twice."""
        return all(
            isinstance(part, SIMPLE)
            and (
                not isinstance(part, ast.Call)
                or (isinstance(part.func, ast.Name) and part.func.id in PURE)
            )
            for part in ast.walk(node)
        )

    def is_known_at(self, node: ast.expr, place: ast.AST) -> bool:
        """Returns whether an expression has the same value at another place."""
        if not self.is_pure(node) or self.source.is_in_string(node):
            return False
        is_at_once = self.source.statement(node) is self.source.statement(place)
        changed = frozenset() if is_at_once else self.names.changed
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id not in PURE:
                if not self._is_bound_at(part, place):
                    return False
            if last_name(part) in changed:
                return False
            if isinstance(part, ast.Attribute) and self.names.is_self(part.value):
                if not self._is_field_at(part, place):
                    return False
        return True

    def _is_bound_at(self, name: ast.Name, place: ast.AST) -> bool:
        found = self.names.lookup(name.id, name)
        if found != self.names.lookup(name.id, place) or len(found) != 1:
            return self.names.is_self(name) and self._has_self(place)
        # In the same iteration of each loop.
        return self.comes_before(found[0], place) and all(
            self.source.holds(loop, name) and self.source.holds(loop, place)
            for loop in self._loops(found[0])
        )

    def _loops(self, binding: Binding) -> Iterator[ast.stmt]:
        """Yields the loops of its function that bind a name again in each iteration."""
        node, parents = binding.node, self.source.parents
        # `:=` in a comprehension binds a name of the scope around it.
        while node is not None and not isinstance(node, SCOPES[:5]):
            if isinstance(node, ast.For | ast.AsyncFor | ast.While):
                yield node
            node = parents.get(node)

    def _has_self(self, place: ast.AST) -> bool:
        around = self.function(place)
        return not isinstance(around, ast.Module) and any(
            arg.arg == "self" for arg in around.args.args
        )

    def comes_before(self, binding: Binding, place: ast.AST) -> bool:
        """Returns whether a name is bound before a place is evaluated."""
        if binding.is_parameter or binding.imported:
            return True
        scope = self.names.scope_node(binding.node)
        if isinstance(scope, ast.Module) and self.function(place) is not scope:
            return True
        if isinstance(scope, SCOPES[5:]):
            return True
        source = self.source
        if isinstance(binding.node, ast.For):
            return any(source.holds(inner, place) for inner in binding.node.body)
        if isinstance(binding.node, ast.NamedExpr):
            return source.end(binding.node) <= source.start(place)
        return source.end(source.statement(binding.node)) <= source.start(
            source.statement(place)
        )

    def _is_field_at(self, node: ast.Attribute, place: ast.AST) -> bool:
        """Returns whether an attribute of `self` is set, and unchanged, at a place."""
        around = self.source.around(place, ast.ClassDef)
        if around is None or around is not self.source.around(node, ast.ClassDef):
            return False
        if not self._has_self(place) or not self.names.is_set_once(node):
            return False
        function = self.function(place)
        values = self.names.attribute_values(node)
        if len(values) == 1 and self.function(values[0]) is function:
            return self.source.end(values[0]) <= self.source.start(place)
        return self.function(node) is function or bool(self.names.fields(node))


def _agreed(answers: list[bool | None]) -> bool | None:
    return answers[0] if len(set(answers)) == 1 else None


def _is_function_by_name(node: ast.expr) -> bool | None:
    """Returns whether a name is one of a function, as `hidden_act`; None: unknown."""
    key = getattr(node, "slice", None)
    is_element = isinstance(key, ast.Constant)
    named = str(key.value) if is_element else last_name(node)
    found = FUNCTION.search(CAPITAL.sub("_", named))
    if found is not None:
        return None if found["rest"] or COUNT.search(named) else True
    # `acts["hidden"]`, an entry of a table of functions.
    if is_element and (named in LAYERS or FUNCTION.search(last_name(node.value))):
        return None
    return False if SIZE.search(named) else None
