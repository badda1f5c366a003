"""What `features` of a cell was: from its carry, or from the size that made it."""

import ast
from dataclasses import replace

from rnncells.migrate.code.carry_calls import (
    CELL,
    CarryCall,
    is_carry_call,
    old_carry_call,
    old_carry_calls,
)
from rnncells.migrate.code.cells import CellClass
from rnncells.migrate.code.containers import container, gives_out, holder
from rnncells.migrate.code.names import Binding, argument, is_bool, last_name
from rnncells.migrate.code.program import Program

PARAM_DTYPE = "carries have the cell's `param_dtype` now, and were float32"
# Functions that keep the shape of what they are given, or of what they choose from.
KEEP_SHAPE = ("where", "stop_gradient", "zeros_like", "ones_like")
LAZY = ("map", "zip", "filter", "iter", "reversed", "values", "items")
# Methods of modules, and where their arguments have the carry.
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
        used = self._of_use(call, call, cell)
        parent = self.source.parents[call]
        is_called = isinstance(parent, ast.Call) and parent.func is call
        if used is not None or is_called:
            return used
        if any(size_stays(self.program, layer, call) for layer in self.layers(call)):
            return None
        uses = self._uses(call)
        found = {self._of_use(use, call, cell): None for use in uses}
        found.pop(None, None)
        sizes = [text for text in found if not text.endswith(".shape[-1]")]
        if len(sizes) == 1:
            return sizes[0]
        if len(sizes) > 1:
            return None
        if found or isinstance(parent, ast.Call | ast.keyword):
            # What is given to another function is of any width.
            return next(iter(found), None)
        return self._of_carries(call, cell)

    def layers(self, call: ast.Call) -> list[ast.Call]:
        """Returns the calls of `RNN` that a cell is given to with a size."""
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
        """Returns the width that one use of a cell tells."""
        parent = self.source.parents[use]
        if isinstance(parent, ast.Call) and parent.func is use:
            return self._of_carry(argument(parent, "carry", 0), place, cell)
        if isinstance(parent, ast.Attribute):
            call = self.source.parents[parent]
            if not (isinstance(call, ast.Call) and call.func is parent):
                return None
            old = old_carry_call(self.program, call)
            if old is not None:
                return self._of_size(old.size, place)
            at = METHODS.get(parent.attr, len(call.args))
            return self._of_carry(next(iter(call.args[at:]), None), place, cell)
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
        self, carry: ast.expr | None, place: ast.Call, cell: CellClass
    ) -> str | None:
        """Returns the width of a carry that the cell is called with."""
        if carry is None or isinstance(carry, ast.Starred):
            return None
        if is_carry_call(carry):
            old = old_carry_call(self.program, carry)
            return None if old is None else self._of_size(old.size, place)
        if isinstance(carry, ast.Name):
            return self._of_carry_name(carry, place, cell)
        if not has_width(cell):
            return None
        if isinstance(carry, ast.Tuple) and len(carry.elts) == 2 == cell.parts:
            one_part = replace(cell, parts=1)
            return self._of_carry(carry.elts[1], place, one_part)
        is_simple = isinstance(carry, ast.Attribute | ast.Subscript)
        if is_simple and self.program.is_known_at(carry, place):
            return shape_of(self.source.text(carry), cell)
        return None

    def _of_carry_name(
        self, carry: ast.Name, place: ast.Call, cell: CellClass
    ) -> str | None:
        found = self.names.lookup(carry.id, carry)
        last = self._last_before(found, carry)
        if last is not None and is_carry_call(last.value):
            old = old_carry_call(self.program, last.value)
            return None if old is None else self._of_size(old.size, place)
        made = [
            old_carry_call(self.program, binding.value)
            for binding in found
            if is_carry_call(binding.value)
        ]
        sizes = {
            text
            for call in made
            if call is not None
            for text in [self._of_size(call.size, place)]
            if text is not None
        }
        if len(made) > 1:
            return None
        bases = [
            binding
            for binding in found
            if not is_carry_call(binding.value)
            and not self._keeps_width(binding.node, carry.id)
        ]
        if len(made) == 1:
            if not bases and sizes:
                return sizes.pop()
            bases += [b for b in found if is_carry_call(b.value)]
        # Where it comes from once, and then goes on from itself.
        if bases and _is_no_sequence(bases[0].value):
            return None
        is_there = found == self.names.lookup(carry.id, place)
        comes_before = self.program.comes_before
        if has_width(cell) and len(bases) == 1 and is_there:
            return shape_of(carry.id, cell) if comes_before(bases[0], place) else None
        return None

    def _last_before(self, found: list[Binding], use: ast.Name) -> Binding | None:
        """Returns the binding that a use has for sure: the last, in its own block."""
        source, statement = self.source, self.source.statement(use)
        before = [
            binding
            for binding in found
            if source.blocks.get(binding.node) is source.blocks[statement]
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
        """Says whether a statement makes a carry of itself: as a step does."""
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.Call) or not any(
            isinstance(node, ast.Name) and node.id == name for node in ast.walk(value)
        ):
            return False
        targets = getattr(statement, "targets", [None])
        if isinstance(targets[0], ast.Tuple):
            # `carry, y = cell(carry, x)`, or `(c, h), y = ...`.
            return self._is_step(value) and any(
                isinstance(node, ast.Name) and node.id == name
                for node in ast.walk(targets[0].elts[0])
            )
        function = (self.names.qualified(value.func) or "").rpartition(".")[2]
        if function in ("tree_map", "map") and value.args:
            # Of a reset, by a function of its leaves.
            of_leaves = value.args[0]
            of_leaves = getattr(of_leaves, "body", of_leaves)
            of_leaves = getattr(of_leaves, "func", of_leaves)
            return last_name(of_leaves) in KEEP_SHAPE
        return function in KEEP_SHAPE

    def _is_step(self, call: ast.Call) -> bool:
        """Says whether a call is that of a cell, or of what is called one."""
        if self.program.kinds.of(call.func).is_cell:
            return True
        return CELL.search(last_name(call.func)) is not None

    def _name_of(self, call: ast.Call) -> str | None:
        """Returns the name of the class of the cell that a call makes."""
        cell = self.program.cell_class(call.func)
        return None if cell is None else cell.name

    def _of_carries(self, call: ast.Call, cell: CellClass) -> str | None:
        """Returns the one size of carries of a class, where it is made at one place.

        Looks in the function around the cell, then in the class.
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
        """Returns the carries of a class or a container, and those of some cell."""
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
        """Says whether a cell is used in its function or class alone."""
        if isinstance(self.names.scope_node(call), ast.ClassDef):
            return False
        if held is not None:
            return all(gives_out(self.program, use) for use in self.names.reads(held))
        parents = self.source.parents
        return self.program.target(call) is not None and all(
            isinstance(parents[use], ast.Attribute)
            or getattr(parents[use], "func", None) is use
            for use in self._uses(call)
        )


def has_width(cell: CellClass) -> bool:
    """Says whether the last axis of a cell's carry is known to be its width."""
    return cell.keeps_last_axis and not cell.is_own


def shape_of(carry: str, cell: CellClass) -> str:
    return f"{carry}.shape[-1]" if cell.parts == 1 else f"{carry}[1].shape[-1]"


def cell_size(call: ast.Call) -> ast.expr | None:
    """Returns the old argument `cell_size` of a call of RNN; None where it has none."""
    size = argument(call, "cell_size", 1)
    # Today's second argument is `time_major`.
    return None if is_bool(size) else size


def size_stays(program: Program, call: ast.Call, made: ast.Call) -> str:
    """Returns why the size of an RNN cannot go to its cell; empty if it can."""
    if has_param_dtype(made):
        return PARAM_DTYPE
    if any(not is_bool(program.names.value(arg)) for arg in call.args[2:]):
        return "the order of its arguments was not the same in all versions"
    return ""


def has_param_dtype(made: ast.Call) -> bool:
    # By position it is the seventh, behind functions and `dtype`.
    return argument(made, "param_dtype", 6) is not None


def _is_no_sequence(node: ast.expr | None) -> bool:
    """Says whether a value can be unpacked, and has no elements."""
    is_lazy = isinstance(node, ast.Call) and last_name(node.func) in LAZY
    return is_lazy or isinstance(node, ast.GeneratorExp)
