"""RC01 to RC03: cells without `features`, and carries in the old form."""

import ast
from collections.abc import Iterator
from functools import lru_cache

from rnncells.migrate.code.carry_calls import (
    CLASS,
    CarryCall,
    is_carry_call,
    old_carry_calls,
)
from rnncells.migrate.code.cells import CONVOLUTIONAL, PARTIAL, CellClass
from rnncells.migrate.code.dtypes import may_be_float64, why_other_dtype
from rnncells.migrate.code.kinds import OPEN
from rnncells.migrate.code.names import argument, last_name
from rnncells.migrate.code.own_cells import taken_from
from rnncells.migrate.code.program import LIBRARIES, PURE, Program
from rnncells.migrate.code.source import Edit
from rnncells.migrate.code.widths import Widths
from rnncells.migrate.rules import marks
from rnncells.migrate.rules.arguments import outer, to_shape
from rnncells.migrate.rules.finding import Finding

# Libraries whose functions have no effects and make no cells.
COMPUTING = ("jax", "math", "numpy")


def features(program: Program, widths: Widths) -> Iterator[Finding]:
    """RC01: cells without `features`."""
    for call in program.calls:
        factory = argument(call, "default_factory")
        if factory is not None and _lacks_features(program, factory):
            why = (
                "`default_factory` constructs the cell without `features`: use a "
                "`lambda`"
            )
            yield Finding("RC01", call, why=why)
        cell = program.cell_class(call.func)
        if cell is None and not call.args and is_some_class(program, call.func):
            given = {keyword.arg for keyword in call.keywords}
            is_given = not given.isdisjoint({"features", None})
            if not is_given and not _is_wide_partial(program, call.func):
                yield Finding("RC01", call, why=marks.unknown_class(program, call.func))
        if cell is None or _is_wide(program, call):
            continue
        width = None
        why = _why_no_width(program, call, cell)
        if not why:
            width = widths.of(call, cell)
        if cell.is_own and widths.is_called_at_once(call) and width is None:
            # Only its `initialize_carry` reads `features`, and nothing calls that.
            continue
        if width is None:
            why = why or marks.no_width(program, widths, call, cell)
            yield Finding("RC01", call, why=why)
            continue
        if cell.is_own:
            edit = _last_argument(program, call, f"features={width}")
        else:
            edit = _first_argument(program, call, width)
        # The size must leave `RNN` when it moves to the cell.
        layers = (("RC04", layer) for layer in widths.layers(call))
        needs = (*layers, *_fields(cell))
        yield Finding("RC01", call, [edit], needs=needs)


def _why_no_width(program: Program, call: ast.Call, cell: CellClass) -> str:
    """Returns why the arguments of a cell may have `features` already, or ""."""
    if _is_unpacked(program, call):
        return marks.unpacked(program, call)
    if call.args and not cell.is_own and program.is_function(call.args[0]) is None:
        return marks.unknown_argument(program, call)
    return ""


def _is_unpacked(program: Program, call: ast.Call) -> bool:
    """Returns whether a call has a starred argument, or a dict of unknown keys."""
    is_starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    return is_starred or program.names.keywords(call) is None


def _lacks_features(program: Program, node: ast.expr) -> bool:
    """Returns whether an expression is a class of cells that has no `features`."""
    is_class = program.kinds.of(node).is_class
    return is_class and not _is_wide_partial(program, node)


def _is_wide_partial(program: Program, node: ast.expr) -> bool:
    """Returns whether an expression is a `partial` that gives a class `features`.

    In a file without old forms, arguments of unknown kind contain `features`.
    """
    made = program.names.value(node)
    is_partial = isinstance(made, ast.Call) and made.args
    if not is_partial or program.names.function_name(made) not in PARTIAL:
        return False
    given = made.args[1:2]
    is_given = bool(given) and program.is_function(given[0]) is not True
    is_given = is_given or program.names.keywords(made) is None
    return is_given and not is_old(program) or _is_wide_partial(program, made.args[0])


def _fields(cell: CellClass) -> tuple[tuple[str, ast.AST], ...]:
    """Returns the rewrite that gives a user's own class its field `features`."""
    return (("RC06", cell.method),) if cell.is_own else ()


def is_some_class(program: Program, node: ast.expr) -> bool:
    """Returns whether an expression is a class of cells, known or not."""
    kind = program.kinds.of(node)
    is_named_so = kind == OPEN and CLASS.search(last_name(node)) is not None
    is_used_so = is_old(program) or bool(old_carry_calls(program))
    return kind.is_class or (is_named_so and is_used_so)


def _last_argument(program: Program, call: ast.Call, text: str) -> Edit:
    """Returns the edit that adds an argument after all others."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not given:
        return _first_argument(program, call, text)
    at = max(outer(program, node)[1] for node in given)
    return Edit(at, at, f", {text}")


def _first_argument(program: Program, call: ast.Call, text: str) -> Edit:
    """Returns the edit that adds an argument before all others."""
    given = [*call.args, *call.keywords]
    if given:
        starts = [outer(program, arg)[0] for arg in call.args]
        starts += [program.source.start(keyword) for keyword in call.keywords]
        at = min(starts)
        return Edit(at, at, f"{text}, ")
    last = program.source.end(call)
    tokens = program.source.tokens_between(program.source.end(call.func), last)
    # Code inside an f-string has no tokens; its edits are dropped later.
    at = next((end for _, end, token in tokens if token == "("), last)
    return Edit(at, at, text)


def has_features(program: Program, call: ast.Call) -> bool:
    """Returns whether a cell is made with `features`, by keyword or as first argument.

    In a file without old forms, a starred argument or a dict whose keys are not known
    contains it; otherwise it does not.
    """
    if features_of(program, call) is not None:
        return True
    is_own = program.cell_class(call.func).is_own
    return not is_own and _is_unpacked(program, call) and not is_old(program)


def features_of(program: Program, call: ast.Call) -> ast.expr | None:
    """Returns the argument `features` of a call that makes a cell, if given."""
    given = program.names.keywords(call) or {}
    by_keyword = given.get("features", argument(call, "features"))
    if by_keyword is not None:
        return by_keyword
    if not call.args or isinstance(call.args[0], ast.Starred):
        return None
    if program.cell_class(call.func).is_own:
        return None
    # In a file without old forms, a first argument of unknown kind is a number.
    is_function = program.is_function(call.args[0])
    is_number = is_function is False or (is_function is None and not is_old(program))
    return call.args[0] if is_number else None


@lru_cache(maxsize=1)
def is_old(program: Program) -> bool:
    """Returns whether a file surely has old forms: carries, or cells without width.

    A mark that is still in the file counts too.
    """
    return (
        "RC01" in program.source.marks.values()
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
            yield Finding(rule, node, why=marks.unknown_receiver(program, call))
            continue
        made = None
        if call.of_class is not None:
            made = _instance(program, call)
            if made is None:
                yield Finding(rule, node, why=marks.unknown_instance(program, call))
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
    """Returns the rewrites that give `features` to the class or cells of a carry."""
    if call.of_class is not None:
        return _fields(call.of_class)
    made = program.kinds.of(call.receiver).made - {None}
    return tuple(("RC01", cell) for cell in made if not _is_wide(program, cell))


def _is_wide(program: Program, made: ast.Call) -> bool:
    """Returns whether a cell is already made with `features`."""
    return program.cell_class(made.func).has_features or has_features(program, made)


def references(program: Program) -> Iterator[Finding]:
    """RC02 and RC03: `initialize_carry` that is passed to another function."""
    for node in program.source.nodes:
        receiver, parent = taken_from(node), program.source.parents.get(node)
        is_called = is_carry_call(parent) and parent.func is node
        if receiver is None or is_called:
            continue
        kind = program.kinds.of(receiver)
        why = (
            "`initialize_carry` is passed on as a function: its arguments are now a "
            "key and one shape, (*batch_dims, size)"
        )
        if kind.is_class:
            yield Finding("RC02", node, why=why)
        elif kind.is_cell and not any(
            made is None or has_features(program, made) for made in kind.made
        ):
            yield Finding("RC03", node, why=why)


def _why_not(program: Program, widths: Widths, call: CarryCall) -> str:
    """Returns why the arguments of a call cannot be rewritten; "" if they can."""
    batch, size = call.arguments.get("batch_dims"), call.size
    if batch is None or size is None:
        return marks.unknown_arguments(program, call)
    init_fn = call.arguments.get("init_fn")
    if any(isinstance(part, ast.NamedExpr) for part in ast.walk(call.node)):
        return "`:=` binds a name in the arguments, whose order changes: do it before"
    if not program.is_pure(size):
        return marks.computed(program, "size", size, "twice")
    if init_fn is not None and call.of_class is None:
        return "`init_fn` is now `carry_init`, an argument of the cell: move it there"
    if init_fn is not None and not _takes_dtype(program, init_fn):
        init_fn = program.source.text(init_fn)
        return (
            f"`carry_init` is called with a key, a shape and a dtype: if `{init_fn}` "
            f"takes all three, pass `carry_init={init_fn}` to the cell"
        )
    if init_fn is not None and not _only_computes(program, init_fn):
        return marks.computed(program, "init_fn", init_fn, "earlier")
    is_image = call.of_class is not None and call.of_class.name in CONVOLUTIONAL
    if isinstance(size, ast.Tuple) and call.of_class is not None and not is_image:
        return (
            f"`size` is the tuple {marks.text(program, size)}, but "
            f"`{call.of_class.name}` takes one number: pass that as `features`"
        )
    if call.of_class is None:
        return _why_not_of(program, widths, call)
    return ""


def _why_not_of(program: Program, widths: Widths, call: CarryCall) -> str:
    """Returns why an instance would not give the same carry; "" if it does."""
    kind = program.kinds.of(call.receiver)
    if kind.is_cell and None not in kind.made:
        whys = (_why_not_by(program, widths, call, made) for made in kind.made)
        return next(filter(None, whys), "")
    # It may be any cell of the file, or one of another file.
    cells = [made for made in program.calls if program.cell_class(made.func)]
    whys = (why_other_dtype(program, made) for made in [None, *cells])
    return next(filter(None, whys), "")


def _why_not_by(
    program: Program, widths: Widths, call: CarryCall, made: ast.Call
) -> str:
    """Returns why the cell that one call makes would give another carry, or ""."""
    cell = program.cell_class(made.func)
    why = "" if cell.is_own else why_other_dtype(program, made)
    if why or cell.has_features:
        return why
    if made.args and not cell.is_own and program.is_function(made.args[0]) is None:
        return marks.unknown_argument(program, made)
    given = features_of(program, made)
    width = widths.of(made, cell) if given is None else program.source.text(given)
    if width != program.source.text(call.size):
        return marks.other_size(program, call, made, width)
    return ""


def _takes_dtype(program: Program, node: ast.expr) -> bool:
    """Returns whether an initializer is one of JAX, or takes three arguments.

    A parameter is taken to be what it is by default.
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
    """Returns whether the calls inside an expression have no effects."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and part is not node:
            named = program.names.qualified(part.func) or last_name(part.func)
            if named not in PURE and named.split(".")[0] not in COMPUTING:
                return False
    return True


def _instance(program: Program, call: CarryCall) -> str | None:
    """Returns the arguments of a cell that only makes a carry; None: not known."""
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
    if may_be_float64(program) and not call.of_class.is_own:
        parts.append("param_dtype=float")
    return ", ".join([*parts, "parent=None"])


def _convolutional_arguments(program: Program, call: CarryCall) -> str | None:
    """Returns `features` and `kernel_size` of a cell that makes the carry of an image.

    Of the kernel only the number of axes matters: it is taken from a cell of the file.
    """
    size = program.names.value(call.size)
    if not isinstance(size, ast.Tuple) or len(size.elts) < 2:
        return None
    *axes, last = size.elts
    if any(isinstance(part, ast.Starred) for part in size.elts):
        return None
    if size is not call.size and not program.is_known_at(last, call.node):
        return None
    kernel = f"({', '.join('1' for _ in axes)}{',' if len(axes) == 1 else ''})"
    for other in program.calls:
        cell, given = program.cell_class(other.func), argument(other, "kernel_size", 1)
        is_alike = isinstance(given, ast.Tuple) and len(given.elts) == len(axes)
        if is_alike and cell is not None and cell.name in CONVOLUTIONAL:
            if program.is_known_at(given, call.node):
                kernel = program.source.text(given)
                break
    return f"{program.source.text(last)}, kernel_size={kernel}"
