"""What names in a file refer to, through imports, aliases and scopes."""

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rnncells.migrate.code.bindings import bindings
from rnncells.migrate.code.source import Source

SCOPES = (
    *(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
# Methods that change their object.
CHANGING = {"append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse"}
CHANGING |= {"update", "setdefault", "popitem"}
# Modules of Flax that are older than `flax.linen`.
BEFORE_LINEN = ("flax.nn.", "flax.deprecated.nn.")


@dataclass(frozen=True, eq=False)
class Binding:
    """One place where a name gets a value.

    Attributes:
      node: the name there, or the statement that defines or imports it.
      value: the expression assigned to the name alone.
      part_of: the expression that is unpacked into several names, and which part of
        the result this name is.
      element_of: the container whose elements a loop binds to the name.
      imported: the full name of an imported object.
      is_parameter: whether it is a parameter of a function.
      default: the default of a parameter.
      annotation: the annotation of a parameter.
    """

    node: ast.AST
    value: ast.expr | None = None
    part_of: tuple[ast.expr, int] | None = None
    element_of: ast.expr | None = None
    imported: str | None = None
    is_parameter: bool = False
    default: ast.expr | None = None
    annotation: ast.expr | None = None

    @property
    def is_optional(self) -> bool:
        """Whether it is a parameter with the default None."""
        return is_none(self.default)

    @property
    def is_none(self) -> bool:
        """Whether it is None, for example where an import fails."""
        return is_none(self.value)

    @property
    def is_class(self) -> bool:
        """Whether it is a class defined in the file."""
        return isinstance(self.node, ast.ClassDef)


@dataclass(eq=False)
class Scope:
    """A part of a file with its own names."""

    node: ast.AST
    names: dict[str, list[Binding]] = field(default_factory=dict)

    def bind(self, name: str, *args, **kwargs) -> None:
        self.names.setdefault(name, []).append(Binding(*args, **kwargs))


class Names:
    """All scopes of a file.

    Args:
      source: the file.
    """

    def __init__(self, source: Source):
        self.source = source
        self._scope_nodes: dict[ast.AST, ast.AST] = {}

    @cached_property
    def scopes(self) -> dict[ast.AST, Scope]:
        nodes, of_others = self.source.nodes, []
        scopes: dict[ast.AST, Scope] = {
            node: Scope(node) for node in nodes if isinstance(node, SCOPES)
        }
        for node in nodes:
            for scope_of, name, kwargs in bindings(node):
                scope = self.scope_node(scope_of)
                if self.is_of_other(name, scope):
                    of_others.append((scope, name, node, kwargs))
                else:
                    scopes[scope].bind(name, node, **kwargs)
        for scope, name, node, kwargs in of_others:
            holder = self._holder(name, scope, scopes)
            # When and how often another function sets it is not known.
            for known in [kwargs] if "imported" in kwargs else [kwargs, {}]:
                holder.bind(name, node, **known)
        return scopes

    def is_of_other(self, name: str, scope: ast.AST) -> bool:
        """Returns whether a scope declares a name `global` or `nonlocal`."""
        return (scope, name) in self._outer

    @cached_property
    def _outer(self) -> dict[tuple[ast.AST, str], ast.Global | ast.Nonlocal]:
        """The `global` and `nonlocal` statements, by scope and name."""
        found: dict[tuple[ast.AST, str], ast.Global | ast.Nonlocal] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Global | ast.Nonlocal):
                scope = self.scope_node(node)
                if not isinstance(scope, ast.Module):
                    found |= {(scope, name): node for name in node.names}
        return found

    def _holder(self, name: str, scope: ast.AST, scopes: dict[ast.AST, Scope]) -> Scope:
        """Returns the scope that binds a name which another scope uses."""
        is_first = True
        while not isinstance(scope, ast.Module):
            if is_first or not isinstance(scope, ast.ClassDef):
                if isinstance(self._outer.get((scope, name)), ast.Global):
                    break
                if name in scopes[scope].names:
                    return scopes[scope]
            scope, is_first = self.scope_node(scope), False
        return scopes[self.source.tree]

    def scope_node(self, node: ast.AST) -> ast.AST:
        """Returns the node of the scope around a node."""
        if node not in self._scope_nodes:
            self._scope_nodes[node] = self._find_scope_node(node)
        return self._scope_nodes[node]

    def _find_scope_node(self, node: ast.AST) -> ast.AST:
        parents = self.source.parents
        # `:=` in a comprehension binds a name of the scope around it.
        passed = SCOPES[5:] if isinstance(node, ast.NamedExpr) else ()
        child, node = node, parents.get(node)
        while node is not None and not (
            isinstance(node, SCOPES)
            and not isinstance(node, passed)
            and _inside(node, child)
        ):
            child, node = node, parents.get(node)
        return child if node is None else node

    def lookup(self, name: str, node: ast.AST) -> list[Binding]:
        """Returns all bindings that a name may have at a node."""
        holder = self._holder(name, self.scope_node(node), self.scopes)
        return holder.names.get(name, [])

    def only(self, name: ast.AST) -> Binding | None:
        """Returns the binding of a name with only one, else None."""
        if not isinstance(name, ast.Name):
            return None
        found = self.lookup(name.id, name)
        return found[0] if len(found) == 1 else None

    def uses(self, name: str, found: list[Binding]) -> list[ast.Name]:
        """Returns the places that read a name with the given bindings."""
        return [
            node
            for node in self._names.get(name, ())
            if isinstance(node.ctx, ast.Load) and self.lookup(name, node) is found
        ]

    def value(self, node: ast.expr) -> ast.expr:
        """Returns the expression that a name is bound to once, or else the node."""
        seen = set()
        while (found := self.only(node)) is not None and found.value is not None:
            if id(found) in seen:
                break
            seen.add(id(found))
            node = found.value
        return node

    def keywords(self, call: ast.Call) -> dict[str, ast.expr] | None:
        """Returns the keyword arguments of a call, with those of unpacked dicts.

        None if the keys of a dict are not known.
        """
        found = {}
        for keyword in call.keywords:
            if keyword.arg is not None:
                found[keyword.arg] = keyword.value
                continue
            entries = _entries(self.value(keyword.value))
            if entries is None or last_name(keyword.value) in self.changed:
                return None
            found |= entries
        return found

    def qualified(self, node: ast.AST) -> str | None:
        """Returns the full name of an imported object, as `jax.numpy.where`."""
        return self._qualified(node, frozenset())

    def _qualified(self, node: ast.AST, seen: frozenset[str]) -> str | None:
        if isinstance(node, ast.Attribute):
            base = self._qualified(node.value, seen)
            return base and f"{base}.{node.attr}"
        if not isinstance(node, ast.Name) or node.id in seen:
            return None
        found = self.lookup(node.id, node)
        imported = {binding.imported for binding in found if not binding.is_none}
        # A fallback for old versions, which no current Flax has.
        today = {name for name in imported if not f"{name}.".startswith(BEFORE_LINEN)}
        imported = today or imported
        if len(imported) == 1 and None not in imported:
            return imported.pop()
        value = self.value(node)
        return None if value is node else self._qualified(value, seen | {node.id})

    def function_name(self, call: ast.Call) -> str:
        """Returns the full name of an imported function, or the name of another."""
        return self.qualified(call.func) or getattr(call.func, "id", "")

    def is_self(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == "self"

    def class_named(self, node: ast.AST) -> ast.ClassDef | None:
        """Returns the class defined in the file that an expression names, or None."""
        found = self.only(self.value(node))
        return found.node if found is not None and found.is_class else None

    def is_of_class(self, node: ast.AST) -> bool:
        """Returns whether a node is an attribute of `self` or of a named class."""
        return isinstance(node, ast.Attribute) and (
            self.is_self(node.value) or self.class_named(node.value) is not None
        )

    def classes(self, node: ast.AST) -> list[ast.ClassDef]:
        """Returns the class around a node and its bases that the file defines.

        For an attribute of a named class, that class and its bases.
        """
        named = getattr(node, "value", None)
        found: list[Any] = [
            self.class_named(named) or self.source.around(node, ast.ClassDef)
        ]
        for around in found:
            for base in around.bases if around else ():
                made = self.class_named(base)
                if made is not None and made not in found:
                    found.append(made)
        return [around for around in found if around is not None]

    def fields(self, node: ast.Attribute) -> list[Binding]:
        """Returns the bindings of an attribute of `self` or of a class in class bodies.

        These are annotated fields, and names with a value.
        """
        found = []
        for around in self.classes(node):
            typed = [
                statement
                for statement in around.body
                if isinstance(statement, ast.AnnAssign)
                and getattr(statement.target, "id", "") == node.attr
            ]
            found += [Binding(s, s.value, annotation=s.annotation) for s in typed]
            found += [
                binding
                for binding in self.scopes[around].names.get(node.attr, ())
                if binding.node not in typed
                and (binding.value or binding.imported or binding.is_class)
                and not binding.is_none
            ]
        return found

    def is_set_once(self, node: ast.Attribute) -> bool:
        """Returns whether an attribute of `self` has only one value.

        It is set in one place, or it is a field that no method sets, in the class
        around it, its bases and the classes derived from it.
        """
        mine = self.classes(node)
        sets = [
            target
            for around, targets in self._attributes[node.attr].items()
            if around in mine or mine[0] in self.classes(targets[0])
            for target in targets
            if not isinstance(target.ctx, ast.Load)
        ]
        return len(sets) + bool(self.fields(node)) <= 1

    def attribute_values(self, node: ast.Attribute) -> list[ast.expr]:
        """Returns the values that methods assign to an attribute of `self`.

        If the class around the node has none, its bases in the file are searched.
        """
        for around in self.classes(node):
            values = []
            for target in self._attributes[node.attr].get(around, ()):
                statement = self.source.parents[target]
                is_set = isinstance(target.ctx, ast.Store)
                if is_set and isinstance(statement, ast.Assign):
                    values.append(statement.value)
            if values:
                return values
        return []

    def reads(self, target: ast.expr) -> list[ast.expr]:
        """Returns the places that read a name or attribute of `self` in its scope."""
        if isinstance(target, ast.Name):
            found = self._names.get(target.id, ())
            scope = self.scope_node(target)
            reads = [node for node in found if self.source.holds(scope, node)]
        else:
            around: Any = self.source.around(target, ast.ClassDef)
            reads = self._attributes[target.attr].get(around, ())
        return [node for node in reads if isinstance(node.ctx, ast.Load)]

    @cached_property
    def _names(self) -> dict[str, list[ast.Name]]:
        found: dict[str, list[ast.Name]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Name):
                found.setdefault(node.id, []).append(node)
        return found

    @cached_property
    def _attributes(self) -> dict[str, dict[ast.ClassDef | None, list[ast.Attribute]]]:
        """The attributes of `self`, by name and by class."""
        found: defaultdict[str, dict] = defaultdict(dict)
        for node in self.source.nodes:
            if isinstance(node, ast.Attribute) and self.is_self(node.value):
                around = self.source.around(node, ast.ClassDef)
                found[node.attr].setdefault(around, []).append(node)
        return found

    @cached_property
    def changed(self) -> frozenset[str]:
        """Names and attributes that are changed in place.

        By `sizes[0] = 3`, `sizes.append(3)`, `c.size = 3`, `setattr(c, "size", 3)`.
        """
        found = set()
        for node in self.source.nodes:
            is_set = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
            if is_set and isinstance(node, ast.Attribute):
                if not self.is_self(node.value):
                    found.add(node.attr)
            elif is_set and isinstance(node, ast.Subscript):
                found.add(last_name(node.value))
            elif isinstance(node, ast.Call):
                found.add(_changed_by(node))
        return frozenset(found - {""})


def _changed_by(call: ast.Call) -> str:
    """Returns the name that a method or `setattr` changes, or ""."""
    if last_name(call.func) == "setattr" and len(call.args) > 1:
        return getattr(call.args[1], "value", "")
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in CHANGING
    return last_name(call.func.value) if is_method else ""


def _entries(node: ast.expr) -> dict[str, ast.expr] | None:
    """Returns the entries of `{...}` or `dict(...)`; None if not all are known."""
    if isinstance(node, ast.Dict):
        keys = [getattr(key, "value", None) for key in node.keys]
        pairs = dict(zip(keys, node.values, strict=True))
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict":
        pairs = {keyword.arg: keyword.value for keyword in node.keywords}
        pairs |= {None: None} if node.args else {}
    else:
        return None
    return pairs if all(isinstance(key, str) for key in pairs) else None


def _inside(scope: ast.AST, child: ast.AST) -> bool:
    """Returns whether a child of a scope's node is evaluated inside the scope."""
    if isinstance(scope, ast.Module):
        return True
    if isinstance(scope, ast.Lambda):
        return child is scope.body
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return any(child is statement for statement in scope.body)
    return True


def argument(call: ast.Call, name: str, at: int | None = None) -> ast.expr | None:
    """Returns an argument of a call by its keyword or position, or None."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    is_given = at is not None and at < len(call.args)
    return call.args[at] if is_given else None


def is_none(node: ast.expr | None) -> bool:
    """Returns whether an expression is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_bool(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def last_name(node: ast.AST | None) -> str:
    """Returns the last name of an expression, as `size` of `self.size`."""
    return getattr(node, "attr", getattr(node, "id", ""))
