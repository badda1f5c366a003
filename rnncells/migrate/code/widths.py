"""The width of a cell, its `features`: from its carry, or from the carry's size."""

import ast
from collections.abc import Iterator
from dataclasses import replace

from rnncells.migrate.code.carry_calls import (
    CarryCall,
    carry_call_of,
    is_carry_call,
    old_carry_call,
    old_carry_calls,
)
from rnncells.migrate.code.cells import CellClass
from rnncells.migrate.code.containers import container, holder, only_read
from rnncells.migrate.code.dtypes import why_other_dtype
from rnncells.migrate.code.names import Binding, argument, is_bool, last_name
from rnncells.migrate.code.program import Program

# Functions whose result has the shape of their argument.
KEEP_SHAPE = ("where", "stop_gradient", "zeros_like", "ones_like")
TREE_MAP = ("tree_map", "map")
LAZY = ("map", "zip", "filter", "iter", "reversed", "values", "items")
# Methods of modules, and the position of the carry among their arguments.
METHODS = {"init": 1, "init_with_output": 1, "apply": 1}


class Widths:
    """Finds the text of `features` for calls that make a cell without it.

    Args:
      program: the file.
    """

    def __init__(self, program: Program):
        self.program = program
        self.source, self.names = program.source, program.names

    def of(self, call: ast.Call, cell: CellClass) -> str | None:
        """Returns an expression for the width of a cell that a call makes."""
        if self.is_called_at_once(call):
            return self._of_use(call, call, cell)
        if any(size_stays(self.program, layer, call) for layer in self.layers(call)):
            return None
        found = {self._of_use(use, call, cell) for use in (call, *self._uses(call))}
        found.discard(None)
        sizes = sorted(text for text in found if not text.endswith(".shape[-1]"))
        if len(sizes) > 1:
            return None
        if sizes or found:
            return next(iter(sizes or sorted(found)))
        if isinstance(self.source.parents[call], ast.Call | ast.keyword):
            # Another function may give its argument a carry of any width.
            return None
        if any(self._is_unknown(carry) for carry in self.carries_given(call)):
            return None
        return self._of_carries(call, cell)

    def _is_unknown(self, carry: ast.expr) -> bool:
        """Returns whether a carry comes from a call that may give it any width."""
        name = last_name(getattr(carry, "func", None))
        is_known = is_carry_call(carry) or name in (*KEEP_SHAPE, *TREE_MAP)
        return isinstance(carry, ast.Call) and not is_known

    def is_called_at_once(self, call: ast.Call) -> bool:
        """Returns whether a cell is called where it is made, as in `Cell()(h, x)`."""
        parent = self.source.parents[call]
        if isinstance(parent, ast.Attribute) and parent.attr in METHODS:
            call, parent = parent, self.source.parents[parent]
        return isinstance(parent, ast.Call) and parent.func is call

    def carries_given(self, call: ast.Call) -> Iterator[ast.expr]:
        """Yields the carries with which a cell is called."""
        for use in (call, *self._uses(call)):
            parent, method = self.source.parents[use], ""
            if isinstance(parent, ast.Attribute) and parent.attr in METHODS:
                use, method, parent = parent, parent.attr, self.source.parents[parent]
            if isinstance(parent, ast.Call) and parent.func is use:
                carry = carry_given(parent, method)
                if carry is not None:
                    yield carry

    def layers(self, call: ast.Call) -> list[ast.Call]:
        """Returns the calls of `RNN` that take a cell and its size."""
        found = []
        for use in (call, *self._uses(call)):
            parent = self.source.parents[use]
            if isinstance(parent, ast.keyword):
                parent = self.source.parents[parent]
            is_call = isinstance(parent, ast.Call) and parent.func is not use
            if is_call and self.program.linen(parent.func) == "RNN":
                found += [parent] if cell_size(parent) is not None else []
        return found

    def _uses(self, call: ast.Call) -> list[ast.expr]:
        """Returns where a cell is read from the name that it is set to."""
        target = self.program.target(call)
        return [] if target is None else self.names.reads(target)

    def _of_use(self, use: ast.expr, place: ast.Call, cell: CellClass) -> str | None:
        """Returns the width that one use of a cell gives."""
        parent = self.source.parents[use]
        if isinstance(parent, ast.Call) and parent.func is use:
            return self._of_carry(carry_given(parent), use, place, cell)
        if isinstance(parent, ast.Attribute):
            call = self.source.parents[parent]
            if not (isinstance(call, ast.Call) and call.func is parent):
                return None
            old = old_carry_call(self.program, call)
            if old is not None:
                return self._of_size(old.size, place)
            return self._of_carry(carry_given(call, parent.attr), use, place, cell)
        if isinstance(parent, ast.keyword):
            parent = self.source.parents[parent]
        if isinstance(parent, ast.Call) and self.program.linen(parent.func) == "RNN":
            if size_stays(self.program, parent, place):
                return None
            return self._of_size(cell_size(parent), place)
        return None

    def _of_size(self, size: ast.expr | None, place: ast.Call) -> str | None:
        if size is None or isinstance(size, ast.Tuple | ast.Starred):
            return None
        return self.source.text(size) if self.program.is_known_at(size, place) else None

    def _of_carry(
        self, carry: ast.expr | None, use: ast.expr, place: ast.Call, cell: CellClass
    ) -> str | None:
        """Returns the width of a carry that a use of the cell is called with."""
        is_pair = isinstance(carry, ast.Tuple | ast.List) and len(carry.elts) == 2
        if is_pair and cell.parts == 2:
            hidden = replace(cell, parts=1)
            return self._of_carry(carry.elts[1], use, place, hidden)
        if is_carry_call(carry):
            old = old_carry_call(self.program, carry)
            return None if old is None else self._of_size(old.size, place)
        # A cell in a variable is taken to be as wide as the carry was made.
        is_free = use is place and has_width(cell)
        if isinstance(carry, ast.Name) and not (is_free and self._may_widen(carry)):
            size = self._size_of_name(carry, place)
            if size is not None:
                return size
        is_simple = isinstance(carry, ast.Name | ast.Attribute | ast.Subscript)
        if not (is_simple and has_width(cell) and self.program.is_pure(carry)):
            return None
        if self.source.is_in_string(carry) or self._is_iterator(carry):
            return None
        is_there = (
            use is place
            or self._is_unchanged(carry, place)
            or self.program.is_known_at(carry, place)
            or self._comes_from_one_place(carry, place)
        )
        return shape_of(self.source.text(carry), cell) if is_there else None

    def _size_of_name(self, carry: ast.Name, place: ast.Call) -> str | None:
        """Returns the size with which the carry of a name is made in one call."""
        found = self.names.lookup(carry.id, carry)
        last = self._last_before(found, carry)
        made = [] if last is None else [carry_call_of(last)]
        if not made or made[0] is None:
            made = [call for call in map(carry_call_of, found) if call is not None]
            if len(made) != 1 or self._bases(found, carry.id):
                return None
        old = old_carry_call(self.program, made[0])
        return None if old is None else self._of_size(old.size, place)

    def _may_widen(self, carry: ast.Name) -> bool:
        """Returns whether broadcasting may widen a carry between its making and a use.

        Only an axis of size 1 broadcasts.
        """
        found = self.names.lookup(carry.id, carry)
        last = self._last_before(found, carry)
        calls = [call for call in map(carry_call_of, found) if call is not None]
        if last is not None and carry_call_of(last) in calls:
            return False
        made = filter(None, (old_carry_call(self.program, call) for call in calls))
        sizes = [self.names.value(one.size) for one in made if one.size is not None]
        is_wide = all(getattr(size, "value", 1) not in (1, None) for size in sizes)
        return not is_wide and any(_is_where(binding.value) for binding in found)

    def _bases(self, found: list[Binding], name: str) -> list[Binding]:
        """Returns the bindings of a carry that are no step from an earlier one."""
        return [
            binding
            for binding in found
            if carry_call_of(binding) is None
            and not self._keeps_width(binding.node, name)
        ]

    def _is_iterator(self, carry: ast.expr) -> bool:
        """Returns whether a carry can be unpacked but not indexed."""
        found = self.names.lookup(getattr(carry, "id", ""), carry)
        return any(
            isinstance(value, ast.GeneratorExp)
            or (isinstance(value, ast.Call) and last_name(value.func) in LAZY)
            for value in (binding.value for binding in found)
        )

    def _is_unchanged(self, carry: ast.expr, place: ast.Call) -> bool:
        """Returns whether a name is bound before a cell is made, and not until its use.

        Both are statements of one block.
        """
        if not isinstance(carry, ast.Name):
            return False
        source, names = self.source, self.names
        made, used = source.statement(place), source.statement(carry)
        scope = names.scope_node(carry)
        if (
            source.blocks[made] is not source.blocks[used]
            or scope is not names.scope_node(place)
            or names.is_of_other(carry.id, scope)
            or source.end(made) > source.start(used)
        ):
            return False
        between = range(source.start(made), source.start(used))
        return all(
            binding.is_parameter
            or names.scope_node(binding.node) is scope
            and source.start(binding.node) not in between
            for binding in names.lookup(carry.id, carry)
        )

    def _comes_from_one_place(self, carry: ast.expr, place: ast.Call) -> bool:
        """Returns whether a name has one origin before a place, and then only steps."""
        if not isinstance(carry, ast.Name):
            return False
        found = self.names.lookup(carry.id, carry)
        made = [b for b in found if carry_call_of(b) is not None]
        bases = [*self._bases(found, carry.id), *made]
        is_there = found == self.names.lookup(carry.id, place)
        return (
            len(bases) == 1 and is_there and self.program.comes_before(bases[0], place)
        )

    def _last_before(self, found: list[Binding], use: ast.Name) -> Binding | None:
        """Returns the binding that a use surely has: the last one in its own block."""
        source, statement = self.source, self.source.statement(use)
        before = [
            binding
            for binding in found
            if source.blocks.get(binding.node)  # type: ignore[call-overload]
            is source.blocks[statement]
            and source.end(binding.node) <= source.start(statement)
        ]
        last = max(before, key=lambda b: source.end(b.node), default=None)
        if last is None or any(
            source.end(last.node) <= source.start(other.node) < source.start(statement)
            for other in found
            if not other.is_parameter
        ):
            return None
        return last

    def _keeps_width(self, statement: ast.AST, name: str) -> bool:
        """Returns whether a statement makes a carry from itself, as a step does."""
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.Call) or not any(
            isinstance(node, ast.Name) and node.id == name for node in ast.walk(value)
        ):
            return False
        targets = getattr(statement, "targets", [None])
        if isinstance(targets[0], ast.Tuple):
            # `carry, y = cell(carry, x)`, or `(c, h), y = ...`.
            return self.program.kinds.of(value.func).is_cell and any(
                isinstance(node, ast.Name) and node.id == name
                for node in ast.walk(targets[0].elts[0])
            )
        function = (self.names.qualified(value.func) or "").rpartition(".")[2]
        if function in TREE_MAP and value.args:
            # A reset: `tree_map(lambda new, old: where(...), ...)`.
            of_leaves = value.args[0]
            of_leaves = getattr(of_leaves, "body", of_leaves)
            of_leaves = getattr(of_leaves, "func", of_leaves)
            return last_name(of_leaves) in KEEP_SHAPE
        return function in KEEP_SHAPE

    def _name_of(self, call: ast.Call) -> str | None:
        """Returns the class name of the cell that a call makes, or None."""
        cell = self.program.cell_class(call.func)
        return None if cell is None else cell.name

    def _of_carries(self, call: ast.Call, cell: CellClass) -> str | None:
        """Returns the one size of a class's carries if its cells are made in one place.

        Looks in the function around the cell, then in the class around that.
        """
        held = container(self.program, call)
        if not self._stays(call, held):
            return None
        of_class = self.source.around(call, ast.ClassDef)
        of_cell, of_any = self._carries(cell, held)
        for scope in filter(None, (self.program.function(call), of_class)):
            carries = [c for c in of_cell if self.source.holds(scope, c.node)]
            sizes = {self.source.text(carry.size) for carry in carries if carry.size}
            texts = {self._of_size(carry.size, call) for carry in carries}
            if len(sizes) != 1 or None in texts:
                continue
            made = [
                other
                for other in self.program.calls
                if self.source.holds(scope, other) and self._name_of(other) == cell.name
            ]
            # Cells of one list or dict are alike.
            places = {self.source.parents[other] for other in made}
            is_one = (
                len(places) == 1
                and {self._of_size(carry.size, call) for carry in of_any} <= texts
            )
            return texts.pop() if is_one else None
        return None

    def _carries(
        self, cell: CellClass, held: ast.expr | None
    ) -> tuple[list[CarryCall], list[CarryCall]]:
        """Returns the carries of a class or container, and those of unknown cells."""
        reads = [] if held is None else self.names.reads(held)
        of_cell, of_any = [], []
        for carry in old_carry_calls(self.program):
            taken = holder(self.program, carry.receiver)
            if carry.of_class is not None:
                of_cell += [carry] if carry.of_class.name == cell.name else []
            elif any(taken is read for read in reads):
                of_cell.append(carry)
            elif self.program.constructor(carry.receiver) is None:
                of_any.append(carry)
        return of_cell, of_any

    def _stays(self, call: ast.Call, held: ast.expr | None) -> bool:
        """Returns whether a cell is only used in its own function or class."""
        if isinstance(self.names.scope_node(call), ast.ClassDef):
            return False
        if held is not None:
            return all(only_read(self.program, use) for use in self.names.reads(held))
        parents = self.source.parents
        return self.program.target(call) is not None and all(
            isinstance(parents[use], ast.Attribute)
            or getattr(parents[use], "func", None) is use
            for use in self._uses(call)
        )


def _is_where(node: ast.expr | None) -> bool:
    """Returns whether an expression is a call of `where`, also for each leaf."""
    is_call = isinstance(node, ast.Call)
    return (
        is_call
        and last_name(node.func) in ("where", *TREE_MAP)
        and (any(last_name(part) == "where" for part in ast.walk(node)))
    )


def has_width(cell: CellClass) -> bool:
    """Returns whether the last axis of a cell's carry is known to be its width."""
    return cell.keeps_last_axis and not cell.is_own


def shape_of(carry: str, cell: CellClass) -> str:
    return f"{carry}.shape[-1]" if cell.parts == 1 else f"{carry}[1].shape[-1]"


def carry_given(call: ast.Call, method: str = "") -> ast.expr | None:
    """Returns the carry among the arguments of a cell, or of a method of it."""
    at = METHODS.get(method, len(call.args) if method else 0)
    return argument(call, "carry", at)


def cell_size(call: ast.Call) -> ast.expr | None:
    """Returns the old argument `cell_size` of a call of RNN, or None."""
    size = argument(call, "cell_size", 1)
    # Today's second argument is `time_major`.
    return None if is_bool(size) else size


def size_stays(program: Program, call: ast.Call, made: ast.Call) -> str:
    """Returns why the size of an `RNN` cannot move to its cell; "" if it can."""
    if any(not is_bool(program.names.value(arg)) for arg in call.args[2:]):
        return (
            "the arguments after the size moved between versions: pass them by "
            "keyword, and the size to the cell"
        )
    cell = program.cell_class(made.func)
    return "" if cell is not None and cell.is_own else why_other_dtype(program, made)
