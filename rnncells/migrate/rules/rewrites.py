"""Rules that rewrite calls: of cells, of their carries, and of `RNN`."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from rnncells.migrate.code.carry_calls import (
    CarryCall,
    is_carry_call,
    old_carry_calls,
)
from rnncells.migrate.code.cells import CONVOLUTIONAL, CellClass
from rnncells.migrate.code.kinds import OPEN
from rnncells.migrate.code.names import argument, is_bool, last_name
from rnncells.migrate.code.own_cells import taken_from
from rnncells.migrate.code.program import LIBRARIES, PURE, Program
from rnncells.migrate.code.source import Edit
from rnncells.migrate.code.widths import (
    PARAM_DTYPE,
    Widths,
    cell_size,
    has_param_dtype,
    size_stays,
)
from rnncells.migrate.rules.arguments import outer, taken_out, to_shape
from rnncells.migrate.rules.finding import MARK, Finding

# Their functions have no effects, and are no cells.
COMPUTING = ("jax", "math", "numpy")
# Names of classes of cells, which come from elsewhere.
CLASS = re.compile(r"(^|_)(cell|rnn|lstm|gru|core)_?(cls|class|type)$", re.IGNORECASE)
UNKNOWN_ARGUMENT = "whether its first argument is `features` or a function is not known"
UNKNOWN_CLASS = "which class it is, is not known"


def is_compact(program: Program, function: ast.FunctionDef) -> bool:
    """Says whether a function is a compact method of a module."""
    return any(program.linen(node) == "compact" for node in function.decorator_list)


def features(program: Program, widths: Widths) -> Iterator[Finding]:
    """RC01: cells without `features`."""
    for call in program.calls:
        factory = argument(call, "default_factory")
        if factory is not None and program.kinds.of(factory).is_class:
            yield Finding("RC01", call, why="its cell is made without `features`")
        cell = program.cell_class(call.func)
        if cell is None and not call.args and is_some_class(program, call.func):
            if not any(keyword.arg in ("features", None) for keyword in call.keywords):
                yield Finding("RC01", call, why=UNKNOWN_CLASS)
        if cell is None or _is_wide(program, call):
            continue
        if any(isinstance(arg, ast.Starred) for arg in call.args) or any(
            keyword.arg is None for keyword in call.keywords
        ):
            why = "`features` may be among the arguments that are unpacked"
            yield Finding("RC01", call, why=why)
            continue
        if call.args and not cell.is_own and program.is_function(call.args[0]) is None:
            yield Finding("RC01", call, why=UNKNOWN_ARGUMENT)
            continue
        width = widths.of(call, cell)
        if width is None:
            why = "no carry tells `features` where the cell is made"
            yield Finding("RC01", call, why=why)
            continue
        if cell.is_own:
            edit = _last_argument(program, call, f"features={width}")
        else:
            edit = _first_argument(program, call, width)
        # A size that leaves an RNN, and one that stays there, would be two.
        layers = (("RC04", layer) for layer in widths.layers(call))
        needs = (*layers, *_fields(cell))
        yield Finding("RC01", call, [edit], needs=needs)


def _fields(cell: CellClass) -> tuple[tuple[str, ast.AST], ...]:
    """Returns what gives a class of the file its `features`, if it is one."""
    return (("RC06", cell.method),) if cell.is_own else ()


def is_some_class(program: Program, node: ast.expr) -> bool:
    """Says whether an expression is a class of cells, which may not be known."""
    kind = program.kinds.of(node)
    is_named_so = kind == OPEN and CLASS.search(last_name(node)) is not None
    return kind.is_class or (is_named_so and is_old(program))


def _last_argument(program: Program, call: ast.Call, text: str) -> Edit:
    """Returns the edit that puts an argument behind all others."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not given:
        return _first_argument(program, call, text)
    at = max(outer(program, node)[1] for node in given)
    return Edit(at, at, f", {text}")


def _first_argument(program: Program, call: ast.Call, text: str) -> Edit:
    """Returns the edit that puts an argument before all others."""
    given = [*call.args, *call.keywords]
    if given:
        starts = [outer(program, arg)[0] for arg in call.args]
        starts += [program.source.start(keyword) for keyword in call.keywords]
        at = min(starts)
        return Edit(at, at, f"{text}, ")
    last = program.source.end(call)
    tokens = program.source.tokens_between(program.source.end(call.func), last)
    # What stands in an f-string has no tokens, and stays.
    at = next((end for _, end, token in tokens if token == "("), last)
    return Edit(at, at, text)


def has_features(program: Program, call: ast.Call) -> bool:
    """Says whether a cell is made with `features`, by keyword or in the first place.

    What is unpacked may have them.
    """
    if argument(call, "features") is not None:
        return True
    if not call.args or isinstance(call.args[0], ast.Starred):
        return False
    if program.cell_class(call.func).is_own:
        return False
    # In a file that is new, what is not known is a number.
    is_function = program.is_function(call.args[0])
    return is_function is False or (is_function is None and not is_old(program))


@lru_cache(maxsize=1)
def is_old(program: Program) -> bool:
    """Says whether a file has old forms for sure: carries, or cells of no width.

    Cells that are marked are some still.
    """
    return (
        f"{MARK}: RC01".encode() in program.source.data
        or any(call.is_sure for call in old_carry_calls(program))
        or any(
            program.cell_class(call.func) is not None and not call.args + call.keywords
            for call in program.calls
        )
    )


def carries(program: Program, widths: Widths) -> Iterator[Finding]:
    """RC02 and RC03: carries of classes, and of instances by three arguments."""
    for call in old_carry_calls(program):
        node = call.node
        kind = program.kinds.of(call.receiver)
        rule = "RC02" if kind.is_class else "RC03"
        if not call.is_sure:
            why = "whether it is a cell, its class or another thing is not known"
            yield Finding(rule, node, why=UNKNOWN_CLASS if kind.is_class else why)
            continue
        made = None
        if call.of_class is not None:
            made = _instance(program, call)
            if made is None:
                why = "not all arguments of the cell are known here" + (
                    "; any `kernel_size` makes the same carry"
                    if call.of_class.name in CONVOLUTIONAL
                    else ""
                )
                yield Finding(rule, node, why=why)
                continue
        why = _why_not(program, widths, call)
        if why:
            yield Finding(rule, node, why=why)
            continue
        edits = to_shape(program, call)
        if made is not None:
            at = program.source.end(call.receiver)
            edits = [Edit(at, at, f"({made})"), *edits]
        yield Finding(rule, node, edits, needs=_made_by(program, call))


def _made_by(program: Program, call: CarryCall) -> tuple[tuple[str, ast.AST], ...]:
    """Returns what gives `features` to the class, or the cells, of a carry."""
    if call.of_class is not None:
        return _fields(call.of_class)
    made = program.kinds.of(call.receiver).made - {None}
    return tuple(("RC01", cell) for cell in made if not _is_wide(program, cell))


def _is_wide(program: Program, made: ast.Call) -> bool:
    """Says whether a cell is made with `features` already."""
    return program.cell_class(made.func).has_features or has_features(program, made)


def references(program: Program) -> Iterator[Finding]:
    """RC02 and RC03: `initialize_carry` that is passed on, and called elsewhere."""
    for node in program.source.nodes:
        receiver, parent = taken_from(node), program.source.parents.get(node)
        is_called = is_carry_call(parent) and parent.func is node
        if receiver is None or is_called:
            continue
        kind = program.kinds.of(receiver)
        why = "it is passed on, and called with other arguments now"
        if kind.is_class:
            yield Finding("RC02", node, why=why)
        elif kind.is_cell and not any(
            made is None or has_features(program, made) for made in kind.made
        ):
            yield Finding("RC03", node, why=why)


def _why_not(program: Program, widths: Widths, call: CarryCall) -> str:
    """Returns why the arguments of a call cannot be rewritten; empty if they can."""
    batch, size = call.arguments.get("batch_dims"), call.size
    if batch is None or size is None:
        return "not all of its arguments are known"
    init_fn = call.arguments.get("init_fn")
    if any(isinstance(part, ast.NamedExpr) for part in ast.walk(call.node)):
        return "a name is set among its arguments, whose order changes"
    if not program.is_pure(size):
        return "the expression for `size` would be computed twice"
    if init_fn is not None and call.of_class is None:
        return "`carry_init` belongs to the constructor of the cell"
    if init_fn is not None and not _takes_dtype(program, init_fn):
        init_fn = program.source.text(init_fn)
        return f"if `{init_fn}` takes a dtype too, write `carry_init={init_fn}`"
    if init_fn is not None and not _only_computes(program, init_fn):
        return "the expression for `init_fn` would be computed earlier"
    is_image = call.of_class is not None and call.of_class.name in CONVOLUTIONAL
    if isinstance(size, ast.Tuple) and call.of_class is not None and not is_image:
        return "a cell of one number of features has a tuple for its size"
    if call.of_class is None:
        return _why_not_of(program, widths, call)
    return ""


def _why_not_of(program: Program, widths: Widths, call: CarryCall) -> str:
    """Returns why an instance would not give the same carry; empty if it does."""
    kind = program.kinds.of(call.receiver)
    if kind.is_cell and None not in kind.made:
        whys = (_why_not_by(program, widths, call, made) for made in kind.made)
        return next(filter(None, whys), "")
    # It may be any of the file.
    cells = (made for made in program.calls if program.cell_class(made.func))
    return PARAM_DTYPE if any(map(has_param_dtype, cells)) else ""


def _why_not_by(
    program: Program, widths: Widths, call: CarryCall, made: ast.Call
) -> str:
    """Returns the same of a cell that one call makes."""
    if has_param_dtype(made):
        return PARAM_DTYPE
    cell = program.cell_class(made.func)
    if cell.has_features:
        return ""
    if made.args and not cell.is_own and program.is_function(made.args[0]) is None:
        return UNKNOWN_ARGUMENT
    if has_features(program, made):
        width = program.source.text(argument(made, "features", 0))
    else:
        width = widths.of(made, cell)
    if width != program.source.text(call.size):
        return "the size of the carry is not known to be that of the cell"
    return ""


def _takes_dtype(program: Program, node: ast.expr) -> bool:
    """Says whether an initialiser is one of JAX, or a function of three arguments.

    What comes in is taken for what it is by default.
    """
    found = program.names.only(node)
    if found is not None and found.is_parameter:
        return found.default is not None and _takes_dtype(program, found.default)
    if found is not None and isinstance(found.node, ast.FunctionDef):
        return len(found.node.args.posonlyargs + found.node.args.args) > 2
    if isinstance(node, ast.Call):
        if len(node.args) > 1 or argument(node, "dtype") is not None:
            return False
        node = node.func
    qualified = program.names.qualified(node) or ""
    return ".initializers." in qualified and qualified.split(".")[0] in LIBRARIES


def _only_computes(program: Program, node: ast.expr) -> bool:
    """Says whether all calls in an expression, but itself, are of plain functions."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and part is not node:
            named = program.names.qualified(part.func) or last_name(part.func)
            if named not in PURE and named.split(".")[0] not in COMPUTING:
                return False
    return True


def _instance(program: Program, call: CarryCall) -> str | None:
    """Returns the arguments of a cell that makes a carry alone."""
    source, parts = program.source, []
    if call.size is None:
        return ""
    if call.of_class.name in CONVOLUTIONAL:
        made = _convolutional_arguments(program, call)
        if made is None:
            return None
        parts.append(made)
    elif call.of_class.is_own:
        if call.of_class.is_required:
            return None
        parts.append(f"features={source.text(call.size)}")
    else:
        parts.append(source.text(call.size))
    init_fn = call.arguments.get("init_fn")
    if init_fn is not None:
        parts.append(f"carry_init={source.text(init_fn)}")
    return ", ".join([*parts, "parent=None"])


def _convolutional_arguments(program: Program, call: CarryCall) -> str | None:
    """Returns `features` and `kernel_size` of the one convolutional cell of a file."""
    found, size = set(), program.names.value(call.size)
    last = size.elts[-1] if isinstance(size, ast.Tuple) and size.elts else None
    for other in program.calls if last is not None else ():
        cell = program.cell_class(other.func)
        if cell is None or cell.name not in CONVOLUTIONAL:
            continue
        wanted = [argument(other, "features", 0), argument(other, "kernel_size", 1)]
        if None in wanted or not all(
            program.is_known_at(node, call.node) for node in wanted
        ):
            return None
        texts = [program.source.text(node) for node in wanted]
        if program.source.text(last) != texts[0]:
            return None
        found.add(f"{texts[0]}, kernel_size={texts[1]}")
    return found.pop() if len(found) == 1 else None


def layers(program: Program, widths: Widths) -> Iterator[Finding]:
    """RC04: the size as an argument of `RNN`; RC12: where the cell has one too."""
    for call in program.calls:
        if program.linen(call.func) != "RNN" or not call.args + call.keywords:
            if argument(call, "cell_size") is not None and program.has_linen:
                why = "a size belongs to the cell now"
                yield Finding("RC04", call, why=why)
            continue
        size = cell_size(call)
        if size is None or _is_time_major(program, size):
            continue
        cell = argument(call, "cell", 0)
        made = program.constructor(cell) if cell is not None else None
        kind = program.cell_class(made.func) if made is not None else None
        if made is not None and not kind.has_features and has_features(program, made):
            if not _is_size(program, size, made):
                continue
            why = (
                "the cell has `features` already, and the size sets `time_major`: drop "
                "it, or write `time_major=True`"
            )
            yield Finding("RC12", call, why=why)
            continue
        why = "" if made is None else size_stays(program, call, made)
        if made is None or not (
            why
            or kind.has_features
            or widths.of(made, kind) == program.source.text(size)
        ):
            why = "its cell is made elsewhere, of another size or of a marked class"
        elif not program.is_pure(size):
            why = "the expression for the size would not be computed"
        elif program.source.has_comment(*outer(program, size)):
            why = "comments stand within the size"
        edits = [] if why else taken_out(program, call, [size])
        # The size goes to the cell.
        is_given = made is not None and not kind.has_features
        needs = (("RC01", made),) if is_given else ()
        yield Finding("RC04", call, edits, why, needs=needs)


def _is_size(program: Program, node: ast.expr, made: ast.Call) -> bool:
    """Says whether an argument of `RNN` is a size: that of its cell, or named so."""
    text, features = program.source.text, argument(made, "features", 0)
    is_same = features is not None and text(features) == text(node)
    return is_same or program.is_function(node) is False


def _is_time_major(program: Program, node: ast.expr) -> bool:
    """Says whether an argument is a truth value, not a size."""
    found = program.names.only(node)
    annotation = getattr(found, "annotation", None)
    return (
        is_bool(program.names.value(node))
        or isinstance(node, ast.Compare)
        or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
        or (found is not None and is_bool(found.default))
        or (isinstance(annotation, ast.Name) and annotation.id == "bool")
        or last_name(node) == "time_major"
    )
