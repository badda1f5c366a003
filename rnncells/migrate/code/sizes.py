"""Expressions that must be numbers, because of their place in a call."""

import ast
from collections.abc import Iterator
from functools import cached_property

from rnncells.migrate.code.kinds import OTHER, Kinds
from rnncells.migrate.code.names import Names, argument, is_bool
from rnncells.migrate.code.own_cells import stays


class Sizes:
    """All sizes that calls of carries and layers in a file contain.

    After a rewrite the first argument of a cell is a size, where a function was. These
    expressions tell that it is a number, whatever its name.

    Args:
      names: of the file.
      kinds: of its expressions.
    """

    def __init__(self, names: Names, kinds: Kinds):
        self.names, self.kinds = names, kinds
        self.source = names.source

    def __contains__(self, node: ast.expr) -> bool:
        alike = self._alike.get(ast.dump(node), ())
        return any(self._is_same(node, size) for size in alike)

    def _is_same(self, one: ast.expr, other: ast.expr) -> bool:
        """Returns whether the names in two equal expressions have the same bindings."""
        for a, b in zip(ast.walk(one), ast.walk(other), strict=True):
            if self.names.is_self(a):
                if self.names.classes(a)[:1] != self.names.classes(b)[:1]:
                    return False
            elif isinstance(a, ast.Name):
                if self.names.lookup(a.id, a) != self.names.lookup(b.id, b):
                    return False
        return True

    @cached_property
    def _alike(self) -> dict[str, list[ast.expr]]:
        found: dict[str, list[ast.expr]] = {}
        for node in self.source.nodes:
            for size in self._sizes_of(node) if isinstance(node, ast.Call) else ():
                found.setdefault(ast.dump(size), []).append(size)
        return found

    def _sizes_of(self, call: ast.Call) -> Iterator[ast.expr]:
        """Yields the sizes in a call."""
        if getattr(call.func, "attr", "") == "initialize_carry":
            yield from self._of_carry(call)
        elif self.kinds.linen(call.func) == "RNN":
            yield from self._of_layer(call)

    def _of_carry(self, call: ast.Call) -> Iterator[ast.expr]:
        """Yields the sizes of a carry: `size`, or the entries of a shape."""
        receiver, size = call.func.value, argument(call, "size", 2)
        is_other = self.kinds.of(receiver) == OTHER or stays(self.names, receiver)
        if size is not None and not is_other:
            yield size
        for shape in (argument(call, "input_shape", 1), argument(call, "batch_dims")):
            yield from shape.elts if isinstance(shape, ast.Tuple) else ()

    def _of_layer(self, call: ast.Call) -> Iterator[ast.expr]:
        """Yields the size of an `RNN`, or the `features` of its cell.

        The second argument is either the old size or today's `time_major`.
        """
        size, cell = argument(call, "cell_size"), argument(call, "cell", 0)
        if size is not None:
            yield size
        elif cell is not None and all(keyword.arg for keyword in call.keywords):
            if all(is_bool(self.names.value(node)) for node in call.args[1:]):
                made = self.kinds.of(cell).made - {None}
                yield from (cell.args[0] for cell in made if cell.args)
