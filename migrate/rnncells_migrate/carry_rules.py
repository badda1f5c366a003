"""RC02 and RC03: carries are created by an instance, from a shape."""

import re

import libcst as cst

from rnncells_migrate.carries import NAME, CarryCall, carry_call, is_pure
from rnncells_migrate.cells import CellClass, Cells, argument
from rnncells_migrate.changes import Changes
from rnncells_migrate.constructors import CLASS
from rnncells_migrate.edits import constructed, copy, has_comment, keyword, with_shape
from rnncells_migrate.names import FLAX, Names, last_name
from rnncells_migrate.tree import Tree
from rnncells_migrate.widths import Widths

# Names of variables that hold a cell.
CELL = re.compile(r"(cell|rnn|lstm|gru|core)_?\d*$")
SHAPE = "(*batch_dims, size)"
X64 = re.compile(r"x64|float64")
PASSED_ON = (
    "`initialize_carry` is passed on as a function: its arguments are now a key and one "
    f"shape, {SHAPE}"
)


class CarryRules:
    """Rewrites the old calls of `initialize_carry` in a module."""

    def __init__(
        self, tree: Tree, names: Names, cells: Cells, widths: Widths, changes: Changes
    ):
        self.tree, self.names, self.cells = tree, names, cells
        self.widths, self.changes = widths, changes
        self.has_x64 = bool(X64.search(tree.text))

    def rewrite(self) -> None:
        for carry in self.widths.carries:
            cell = self.cells.class_of(carry.receiver)
            if cell is not None:
                self._of_class(carry, cell)
                continue
            made = self.cells.cells_in(carry.receiver)
            if made or not self._is_of_other(carry.receiver):
                self._of_instance(carry, made)
        self._mark_references()

    def _of_class(self, carry: CarryCall, cell: CellClass) -> None:
        """Rewrites `Class.initialize_carry(...)`, by an instance without a parent."""
        why = self._why_not(carry) or self._why_not_of_class(carry, cell)
        if why:
            self.changes.mark("RC02", carry.call, why)
            return
        args = self._instance_arguments(carry, cell)

        def edit(call: cst.Call) -> cst.Call:
            func = call.func.with_changes(value=constructed(call.func.value, args))
            return with_new_shape(carry, call.with_changes(func=func))

        self.changes.edit("RC02", carry.call, edit)

    def _of_instance(self, carry: CarryCall, made: list[cst.Call]) -> None:
        """Rewrites `cell.initialize_carry(...)` if the cell is known, or by its name."""
        name = self.tree.code(carry.receiver)
        is_cell = CELL.search(last_name(carry.receiver).lower()) is not None
        is_class = CLASS.search(last_name(carry.receiver)) or name[:1].isupper()
        if made or (is_cell and not is_class and carry.is_sure and self._has_flax()):
            why = self._why_not(carry) or self._why_not_of_cells(carry, made)
        elif not carry.is_sure or not self._has_flax():
            return
        elif is_class:
            why = f"`{name}` may be one of several classes of cells: write "
            why += f"`{name}(size, parent=None).{NAME}(key, {SHAPE})`"
        else:
            why = f"`{name}` may be a cell or something else: if it is a cell, write "
            why += f"`{name}.{NAME}(key, {SHAPE})`"
        if why:
            self.changes.mark("RC03", carry.call, why)
        else:
            edit = lambda call: with_new_shape(carry, call)  # noqa: E731
            self.changes.edit("RC03", carry.call, edit)

    def _is_of_other(self, receiver: cst.BaseExpression) -> bool:
        """Returns whether a receiver is, or is constructed by, a class of another kind."""
        value = self.names.value(receiver) or receiver
        if isinstance(value, cst.Call):
            func = value.func
            if isinstance(func, cst.Name) and func.value in {"super", "type"}:
                return True
            value = func
        known = self.names.qualified(value)
        if self.names.local_class(value) is not None:
            return True
        is_library = known.split(".")[0] in {"flax", "jax", "equinox", "haiku", "torch"}
        return is_library or last_name(receiver) in {"self", "cls"}

    def _has_flax(self) -> bool:
        """Returns whether the module imports `flax.linen` or the shim."""
        return any(
            isinstance(node, cst.Import | cst.ImportFrom)
            and re.search(r"\blinen\b|\blegacy\b", self.tree.code(node))
            for node in self.tree.nodes
        )

    def _why_not(self, carry: CarryCall) -> str:
        """Returns why the arguments cannot be rewritten; "" if they can."""
        if carry.batch is None or carry.size is None:
            name = self.tree.code(carry.receiver)
            return f"not all arguments are known: write `{name}.{NAME}(key, {SHAPE})`"
        if any(isinstance(node, cst.NamedExpr) for node in self._nodes(carry)):
            return "`:=` binds a name in the arguments: do it before"
        if not is_pure(carry.size):
            return "`size` is a call, which would run twice: assign it to a variable first"
        if self._loses_comments(carry):
            return "comments stand between the arguments: move them first"
        return ""

    def _nodes(self, carry: CarryCall) -> list[cst.CSTNode]:
        stack, nodes = list(carry.call.args), []
        while stack:
            nodes.append(stack.pop())
            stack.extend(nodes[-1].children)
        return nodes

    def _loses_comments(self, carry: CarryCall) -> bool:
        if not has_comment(carry.call):
            return False
        new = with_new_shape(carry, carry.call)
        before, after = (
            re.findall("#.*", cst.Module([]).code_for_node(call))
            for call in (carry.call, new)
        )
        return len(before) != len(after)

    def _why_not_of_class(self, carry: CarryCall, cell: CellClass) -> str:
        if carry.init_fn is not None and not self._is_initializer(carry.init_fn):
            return (
                "`carry_init` is called with a key, a shape and a dtype: if `init_fn` "
                "takes all three, pass it to the cell as `carry_init`"
            )
        is_tuple = isinstance(carry.size, cst.Tuple)
        if cell.is_convolutional and not (is_tuple and len(carry.size.elements) > 1):
            return (
                "the number of axes of `size` is not known: write `ConvLSTMCell("
                "features, kernel_size, parent=None)."
                f"{NAME}(key, (*batch_dims, *size))`"
            )
        if is_tuple and not cell.is_convolutional:
            return "`size` is a tuple, but this cell has one number of `features`"
        return ""

    def _is_initializer(self, node: cst.BaseExpression) -> bool:
        """Returns whether an initializer of JAX also takes a dtype."""
        if isinstance(node, cst.Call):
            if len(node.args) > 1 or argument(node, "dtype") is not None:
                return False
            node = node.func
        return ".initializers." in self.names.qualified(node)

    def _instance_arguments(self, carry: CarryCall, cell: CellClass) -> list[cst.Arg]:
        size = carry.size
        if cell.is_convolutional:
            kernel = self._kernel(len(size.elements) - 1)
            args = [cst.Arg(copy(size.elements[-1].value)), keyword("kernel_size", kernel)]
        elif cell.own is not None:
            args = [keyword("features", copy(size))]
        else:
            args = [cst.Arg(copy(size))]
        if carry.init_fn is not None:
            args.append(keyword("carry_init", copy(carry.init_fn)))
        if self.has_x64 and cell.own is None:
            # JAX's default float, the dtype of carries before Flax 0.7.
            args.append(keyword("param_dtype", cst.Name("float")))
        return args

    def _kernel(self, axes: int) -> cst.BaseExpression:
        """Returns a kernel of some axes, like one of the file if there is one."""
        for call, cell in self.cells.constructed.items():
            kernel = argument(call, "kernel_size", 1)
            if cell.is_convolutional and isinstance(kernel, cst.Tuple):
                if len(kernel.elements) == axes and not names_any(kernel):
                    return copy(kernel)
        ones = ", ".join("1" * axes)
        return cst.parse_expression(f"({ones},)" if axes == 1 else f"({ones})")

    def _why_not_of_cells(self, carry: CarryCall, made: list[cst.Call]) -> str:
        """Returns why the cells would not give the same carry; "" if they do."""
        if carry.init_fn is not None:
            return "`init_fn` is now `carry_init`, an argument of the cell: move it there"
        for call in made:
            cell = self.cells.constructed[call]
            if self.has_x64 or argument(call, "param_dtype") is not None:
                return (
                    "the carry now has the `param_dtype` of its cell: pass the dtype "
                    f"there, and write `{NAME}(key, {SHAPE})`"
                )
            if cell.is_convolutional:
                continue
            features = self.cells.features(call)
            width = self.widths.of(call) if features is None else features
            if not isinstance(width, cst.CSTNode) or self._differ(width, carry.size):
                return (
                    "the size is not known to be the `features` of the cell: make both "
                    f"equal, and write `{NAME}(key, {SHAPE})`"
                )
        return ""

    def _differ(self, width: cst.BaseExpression, size: cst.BaseExpression) -> bool:
        return self.tree.code(width) != self.tree.code(size)

    def _mark_references(self) -> None:
        """Marks `initialize_carry` that is passed on as a function."""
        for node in self.tree.nodes:
            if not isinstance(node, cst.Attribute) or node.attr.value != NAME:
                continue
            parent = self.tree.parent(node)
            is_called = isinstance(parent, cst.Call) and parent.func is node
            if not is_called and self.cells.class_of(node.value) is not None:
                if not self.tree.is_left(node):
                    self.changes.mark("RC02", node, PASSED_ON)


def with_new_shape(carry: CarryCall, call: cst.Call) -> cst.Call:
    """Returns a call with the shape in place of the old arguments."""
    index = carry.indices
    return with_shape(call, index["batch_dims"], index["size"], index.get("init_fn"))


def names_any(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) or any(names_any(c) for c in node.children)
