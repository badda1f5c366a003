"""RC02 and RC03: carries are created by an instance, from a shape."""

import re

import libcst as cst

from rnncells_migrate.carries import NAME, CarryCall, is_pure
from rnncells_migrate.cells import CellClass, argument
from rnncells_migrate.changes import Changes
from rnncells_migrate.constructors import CLASS
from rnncells_migrate.edits import comments, constructed, copy, keyword, with_shape
from rnncells_migrate.names import last_name, names_in
from rnncells_migrate.tree import walk
from rnncells_migrate.widths import OTHER_DTYPE, Widths

# Names of variables that hold a cell, and arguments that can only be `batch_dims`.
CELL = re.compile(r"(cell|rnn|lstm|gru|core)_?\d*$")
BATCH = re.compile(r"^\(|\.shape(\[.*:.*\])?$|dims$|batch_shape$")
LINEN = re.compile(r"\bflax\.linen\b|\bflax import .*\blinen\b|\brnncells\b")
OTHER = re.compile(r"(flax|jax|equinox|haiku|torch)\.|(self|cls)$")
SHAPE = "(*batch_dims, size)"
CALL = f"{NAME}(key, {SHAPE})`"
PASSED_ON = f"`{NAME}` now takes a key and one shape, {SHAPE}: call it with both"
INITIALIZER = "pass `init_fn` to the cell as `carry_init`, which also takes a dtype"
AXES = f"the number of axes is not known: write `ConvLSTMCell(...).{CALL}"
OTHER_SIZE = f"make `features` of the cell and the size equal, and write `cell.{CALL}"


def rewrite_carries(program: Widths, changes: Changes) -> None:
    """Rewrites the old calls of `initialize_carry`."""
    for carry in program.carries:
        cell = program.cell_class(carry.receiver)
        if cell is None:
            _rewrite_of_instance(program, changes, carry)
        elif why := _why_not(carry) or _why_not_of_class(program, carry, cell):
            changes.mark("RC02", carry.call, why)
        else:
            args = _cell_arguments(program, carry, cell)
            changes.edit("RC02", carry.call, _of_new_cell, args, carry.indices)


def _of_new_cell(call: cst.Call, args: list[cst.Arg], indices: dict) -> cst.Call:
    func = call.func.with_changes(value=constructed(call.func.value, args))
    return with_shape(call.with_changes(func=func), indices)


def _rewrite_of_instance(program: Widths, changes: Changes, carry: CarryCall) -> None:
    """Rewrites `cell.initialize_carry(...)` if the cell is known, or by its name."""
    cells = program.cells_in(carry.receiver)
    name, last = program.code(carry.receiver), last_name(carry.receiver)
    # Unpacked arguments may be today's.
    if not carry.indices or not (cells or _is_of_cell(program, carry)):
        return
    why = _why_not(carry) or _why_not_of_cells(program, carry, cells)
    if not cells and (CLASS.search(last) or last[:1].isupper()):
        why = f"`{name}` may be one of several classes of cells: write "
        why += f"`{name}(size, parent=None).{CALL}"
    elif not cells and not CELL.search(last.lower()):
        why = f"`{name}` may be a cell or something else: if it is a cell, write "
        why += f"`{name}.{CALL}"
    if why:
        changes.mark("RC03", carry.call, why)
    else:
        changes.edit("RC03", carry.call, with_shape, carry.indices)


def _is_of_cell(program: Widths, carry: CarryCall) -> bool:
    """Returns whether the arguments can only be those of a cell of Flax."""
    batch, value = carry.argument("batch_dims"), program.value(carry.receiver)
    if batch is None or carry.size is None or not LINEN.search(program.text):
        return False
    creator = value.func if isinstance(value, cst.Call) else carry.receiver
    name = program.qualified(creator) or last_name(creator)
    is_imported = creator is carry.receiver and program.qualified(creator)
    is_other = is_imported or OTHER.match(name) or program.local_class(creator)
    if is_other or isinstance(carry.receiver, cst.Call):
        return False
    is_named = carry.call.args[carry.indices["batch_dims"]].keyword is not None
    is_shape = is_named or BATCH.search(program.code(batch)) is not None
    return is_shape and is_pure(carry.size)


def _why_not(carry: CarryCall) -> str:
    """Returns why the arguments cannot be rewritten; "" if they can."""
    if carry.argument("batch_dims") is None or carry.size is None:
        return f"not all arguments are known: write `cell.{CALL}"
    if any(isinstance(n, cst.NamedExpr) for arg in carry.call.args for n in walk(arg)):
        return "`:=` binds a name in the arguments: do it before"
    if not is_pure(carry.size):
        return "`size` would be computed twice: assign it to a variable first"
    new = with_shape(carry.call, carry.indices)
    if len(comments(new)) < len(comments(carry.call)):
        return "comments stand between the arguments: move them first"
    return ""


def _why_not_of_class(program: Widths, carry: CarryCall, cell: CellClass) -> str:
    init_fn, is_tuple = carry.argument("init_fn"), isinstance(carry.size, cst.Tuple)
    if init_fn is not None:
        # A second argument of `normal(...)` and the like is a dtype.
        has_dtype = re.search(r"dtype|,", program.code(init_fn)) is not None
        function = getattr(init_fn, "func", init_fn)
        if has_dtype or ".initializers." not in program.qualified(function):
            return INITIALIZER
    if cell.is_convolutional:
        return "" if is_tuple and len(carry.size.elements) > 1 else AXES
    return "`size` is a tuple, but `features` is one number" if is_tuple else ""


def _cell_arguments(program: Widths, carry: CarryCall, cell: CellClass) -> list:
    """Returns the arguments of the cell that creates a carry."""
    size, init_fn = carry.size, carry.argument("init_fn")
    if cell.is_convolutional:
        *axes, last = size.elements
        kernel = keyword("kernel_size", _kernel(program, len(axes)))
        args = [cst.Arg(copy(last.value)), kernel]
    else:
        args = [keyword("features", copy(size)) if cell.is_own else cst.Arg(copy(size))]
    if init_fn is not None:
        args.append(keyword("carry_init", copy(init_fn)))
    if program.has_x64 and not cell.is_own:
        # JAX's default float, the dtype of carries before Flax 0.7.
        args.append(keyword("param_dtype", cst.Name("float")))
    return args


def _kernel(program: Widths, axes: int) -> cst.BaseExpression:
    """Returns a kernel of some axes, like one of the file if there is one."""
    for call, cell in program.constructed.items():
        kernel = argument(call, "kernel_size", 1)
        if cell.is_convolutional and isinstance(kernel, cst.Tuple):
            if len(kernel.elements) == axes and not names_in(kernel):
                return copy(kernel)
    return cst.parse_expression(repr((1,) * axes))


def _why_not_of_cells(program: Widths, carry: CarryCall, cells: list[cst.Call]) -> str:
    """Returns why the cells would not give the same carry; "" if they do."""
    if carry.argument("init_fn") is not None:
        return INITIALIZER
    if program.has_x64 and not cells:
        return OTHER_DTYPE
    for call in cells:
        if program.changes_dtype(call):
            return OTHER_DTYPE
        is_image = program.constructed[call].is_convolutional
        if not is_image and not has_width(program, call, carry.size):
            return OTHER_SIZE
    return ""


def has_width(program: Widths, cell: cst.Call, size: cst.BaseExpression) -> bool:
    """Returns whether a cell has, or gets, a size as its `features`."""
    width = program.features(cell) or program.width(cell)
    return width is not None and program.code(width) == program.code(size)


def mark_references(program: Widths, changes: Changes) -> None:
    """Marks `initialize_carry` of a class that is passed on as a function."""
    for node in program.nodes:
        is_method = isinstance(node, cst.Attribute) and node.attr.value == NAME
        if is_method and getattr(program.parent(node), "func", None) is not node:
            if program.cell_class(node.value) and not program.is_left(node):
                changes.mark("RC02", node, PASSED_ON)
