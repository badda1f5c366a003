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
from rnncells.migrate.code.cells import CONVOLUTIONAL, CellClass, taken_from
from rnncells.migrate.code.kinds import OPEN
from rnncells.migrate.code.names import argument, last_name
from rnncells.migrate.code.program import LIBRARIES, PURE, Program
from rnncells.migrate.code.source import Edit
from rnncells.migrate.code.widths import (
    METHODS,
    PARAM_DTYPE,
    Widths,
    cell_size,
    has_param_dtype,
    is_bool,
    size_stays,
)
from rnncells.migrate.rules.arguments import outer, taken_out, to_shape
from rnncells.migrate.rules.finding import Finding

# Their functions have no effects, and are no cells.
COMPUTING = ("jax", "math", "numpy")
# Names of classes of cells, which come from elsewhere.
CLASS = re.compile(r"(^|_)(cell|rnn|lstm|gru|core)_?(cls|class|type)$", re.IGNORECASE)
LAYER = re.compile(r"(^|_)(rnn|lstm|gru|bidirectional)s?$")
UNKNOWN_ARGUMENT = "whether its first argument is `features` or a function is not known"
UNKNOWN_CLASS = "which class it is, is not known"


def is_compact(program: Program, function: ast.FunctionDef) -> bool:
    """Says whether a function is a compact method of a module."""
    return any(program.linen(node) == "compact" for node in function.decorator_list)


def features(program: Program, widths: Widths) -> Iterator[Finding]:
    """RC01: cells without `features`."""
    for call in program.calls:
        cell = program.cell_class(call.func)
        if cell is None and not call.args and is_some_class(program, call.func):
            if not any(keyword.arg in ("features", None) for keyword in call.keywords):
                yield Finding("RC01", call, why=UNKNOWN_CLASS)
        if cell is None or cell.has_features or has_features(program, call):
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
        yield Finding("RC01", call, [edit], needs=_field(cell))


def _field(cell: CellClass | None) -> tuple[str, ...]:
    """Returns the rule that gives a class of the file its `features`, if it is one."""
    return ("RC06",) if cell is not None and cell.is_own else ()


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
    """Says whether a file has old forms for sure: carries, or cells of no width."""
    return any(call.is_sure for call in old_carry_calls(program)) or any(
        program.cell_class(call.func) is not None and not call.args + call.keywords
        for call in program.calls
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
                why = "not all arguments of the cell are known here"
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
        yield Finding(rule, node, edits, needs=_field(call.of_class))


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
        return "`carry_init` is called with a dtype too, which this may not take"
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
    made = program.constructor(call.receiver)
    if made is None:
        return ""
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
            why = "the cell has `features` already, and the size sets `time_major`"
            yield Finding("RC12", call, why=why)
            continue
        why = "" if made is None else size_stays(program, call, made)
        if made is None or not (
            why
            or kind.has_features
            or widths.of(made, kind) == program.source.text(size)
        ):
            why = "the cell is made elsewhere, or of another size: give it this one"
        elif not program.is_pure(size):
            why = "the expression for the size would not be computed"
        elif program.source.has_comment(*outer(program, size)):
            why = "comments stand within the size"
        edits = [] if why else taken_out(program, call, [size])
        # The size goes to the cell.
        yield Finding("RC04", call, edits, why, needs=("RC01", *_field(kind)))


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


def masks(program: Program) -> Iterator[Finding]:
    """RC07: `segmentation_mask`, integers, 1 at the first steps of each row."""
    for call in program.calls:
        for keyword in call.keywords:
            is_layer = keyword.arg == "segmentation_mask" and _is_layer(program, call)
            if is_layer is False:
                continue
            is_plain = isinstance(keyword.value, ast.Name | ast.Attribute)
            why = ""
            if is_layer is None:
                why = "whether it is a layer of Flax is not known"
            elif not is_plain and not _is_array(program, keyword.value):
                why = "it may be None, and without a mask there are no lengths"
            edits = [] if why else _to_lengths(program, keyword)
            yield Finding("RC07", keyword.value, edits, why)


def _is_layer(program: Program, call: ast.Call) -> bool | None:
    """Says whether a call is that of an RNN, or one of its methods; None: perhaps."""
    layer = call.func
    if isinstance(layer, ast.Attribute) and layer.attr in METHODS:
        layer = layer.value
    layers = [program.names.value(layer)]
    if isinstance(layer, ast.Attribute) and program.names.is_self(layer.value):
        layers = program.names.attribute_values(layer)
    made = [m.func for m in layers if isinstance(m, ast.Call)]
    if len(made) == len(layers) > 0:
        if all(program.linen(m) in ("RNN", "Bidirectional") for m in made):
            return True
    is_another = any(last_name(function)[:1].isupper() for function in made)
    return None if LAYER.search(last_name(layer)) and not is_another else False


def _is_array(program: Program, node: ast.expr) -> bool:
    """Says whether a value is an array for sure, not None."""
    node = program.names.value(node)
    if isinstance(node, ast.Call):
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "astype"
        function = program.names.qualified(node.func) or ""
        return is_method or function.startswith("jax.")
    return isinstance(node, ast.Compare | ast.BinOp | ast.UnaryOp)


def _to_lengths(program: Program, keyword: ast.keyword) -> list[Edit]:
    start, (at, end) = program.source.start(keyword), outer(program, keyword.value)
    edits = [Edit(start, start + len("segmentation_mask"), "seq_lengths")]
    if not _is_array(program, keyword.value):
        text = program.source.text(keyword.value)
        edits.append(Edit(at, at, f"None if {text} is None else "))
    if isinstance(keyword.value, ast.Name | ast.Attribute | ast.Call):
        return [*edits, Edit(end, end, ".sum(-1)")]
    return [*edits, Edit(at, at, "("), Edit(end, end, ").sum(-1)")]
