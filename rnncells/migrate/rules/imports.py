"""RC09: imports of recurrent names."""

import ast
from collections.abc import Callable, Iterator
from itertools import takewhile

from rnncells.migrate.code.bindings import bindings
from rnncells.migrate.code.cells import linen_name
from rnncells.migrate.code.names import Binding
from rnncells.migrate.code.program import Program
from rnncells.migrate.code.source import Edit, Source, apply
from rnncells.migrate.rules.finding import IN_STRING, Finding

# Names of Flax that this library has too.
MOVED = {
    *("LSTMCell", "OptimizedLSTMCell", "GRUCell", "ConvLSTMCell"),
    *("MGUCell", "SimpleCell", "RNN", "Bidirectional"),
}
HERE, FLAX, SHIM = "rnncells", "flax.linen", "rnncells.legacy"
MODULES, SHIMS = ((module, f"{module}.recurrent") for module in (FLAX, SHIM))
# Names that only the shim has.
OF_SHIM = {"ConvLSTM", "strict", "set_strict", "REMOVAL_DATE", "REMOVAL_VERSION"}
OF_OTHER = "it is imported as `global` or `nonlocal`: import it at module level"


def from_shim(program: Program) -> Iterator[Finding]:
    """RC09: imports of the shim become imports of Flax."""
    for node in program.source.nodes:
        aliases = node.names if isinstance(node, ast.Import | ast.ImportFrom) else ()
        for alias in aliases:
            if isinstance(node, ast.Import) and _is_of_shim(alias.name):
                find = _as_name if alias.asname else _as_attribute
                yield from find(program, node, alias)
            elif _module(node) == HERE and f"{HERE}.{alias.name}" == SHIM:
                yield from _as_name(program, node, alias)
        if _is_of_shim(_module(node)):
            yield from _names(program, node)


def _is_of_shim(module: str | None) -> bool:
    """Returns whether a module is the shim or a submodule of it."""
    return f"{module}.".startswith(f"{SHIM}.")


def _module(node: ast.AST) -> str | None:
    """Returns the module that names are imported from; None if it is relative."""
    if isinstance(node, ast.ImportFrom) and not node.level:
        return node.module
    return None


def _as_name(
    program: Program, node: ast.Import | ast.ImportFrom, alias: ast.alias
) -> Iterator[Finding]:
    """Yields the rewrite of `import rnncells.legacy as nn`, or with `from`."""
    source, names = program.source, program.names
    name = alias.asname or alias.name
    found = names.lookup(name, node)
    full = SHIM if isinstance(node, ast.ImportFrom) else alias.name
    why = _why_not(program, name, found, full, names.uses(name, found))
    if isinstance(node, ast.ImportFrom) and len(node.names) > 1:
        why = why or f"`{alias.name}` is imported with other names: import it alone"
    if why:
        yield Finding("RC09", node, why=why)
    elif isinstance(node, ast.Import):
        edit = _path_edit(source, alias, full.replace(SHIM, FLAX))
        yield Finding("RC09", node, [edit])
    else:
        package, _, module = FLAX.rpartition(".")
        module = module if alias.asname else f"{module} as {name}"
        edits = [_path_edit(source, node, package), _path_edit(source, alias, module)]
        yield Finding("RC09", node, edits)


def _as_attribute(
    program: Program, node: ast.Import, alias: ast.alias
) -> Iterator[Finding]:
    """Yields the rewrite of `import rnncells.legacy` and all of its uses."""
    source, names = program.source, program.names
    found = names.lookup(HERE, node)
    uses = names.uses(HERE, found)
    modules = [source.parents[use] for use in uses if _is_shim(source, use)]
    if any(source.is_skipped(use) for use in modules):
        return
    why = _why_not(program, HERE, found, HERE, modules)
    if _is_of_other(program, node):
        why = why or OF_OTHER
    for place in (node, *modules):
        if any(b.imported != "flax" for b in names.lookup("flax", place)):
            why = why or "`flax` is another name here: rename that"
    if any(source.is_in_string(use) for use in modules):
        why = why or IN_STRING
    if _is_used_without(program):
        why = why or "another function uses this import: import it there too"
    if why:
        yield Finding("RC09", node, why=why)
        return
    text = alias.name.replace(SHIM, FLAX)
    text += f", {HERE}" if len(modules) < len(uses) else ""
    edits = [_path_edit(source, alias, text)]
    if node is next(b.node for b in found if _imports_shim(b.node)):
        package, _, module = FLAX.rpartition(".")
        for use in modules:
            end = source.end(use)
            at = end - len(SHIM.rpartition(".")[2])
            start = source.start(use.value)
            edits.append(Edit(start, start + len(HERE), package))
            edits.append(Edit(at, end, module))
    yield Finding("RC09", node, edits)


def _is_shim(source: Source, use: ast.Name) -> bool:
    parent = source.parents[use]
    return isinstance(parent, ast.Attribute) and f"{HERE}.{parent.attr}" == SHIM


def _imports_shim(node: ast.AST) -> bool:
    return isinstance(node, ast.Import) and any(
        _is_of_shim(alias.name) and not alias.asname for alias in node.names
    )


def _is_used_without(program: Program) -> bool:
    """Returns whether a scope uses the shim which only another scope imports."""
    return any(
        isinstance(node, ast.Name)
        and node.id == HERE
        and _is_shim(program.source, node)
        and not any(_imports_shim(b.node) for b in program.names.lookup(HERE, node))
        for node in program.source.nodes
    )


def _why_not(
    program: Program,
    name: str,
    found: list[Binding],
    meaning: str,
    uses: list[ast.expr],
) -> str:
    """Returns why an import of the shim cannot become one of Flax; "" if it can."""
    if any(b.imported != meaning and not b.is_none for b in found):
        return f"`{name}` is another name too: rename that"
    for use in uses:
        attribute = getattr(program.source.parents[use], "attr", "")
        if attribute in OF_SHIM:
            return f"`{attribute}` is only in the shim: take it out"
    return ""


def _names(program: Program, node: ast.ImportFrom) -> Iterator[Finding]:
    """Yields the rewrite of an import of names from the shim."""
    is_star = node.names[0].name == "*"
    if is_star and node.module in SHIMS:
        return
    for alias in () if is_star else node.names:
        name = alias.asname or alias.name
        found = program.names.lookup(name, node)
        meaning = f"{node.module}.{alias.name}"
        why = _why_not(program, name, found, meaning, [])
        if alias.name in OF_SHIM:
            why = f"`{alias.name}` is only in the shim: take it out"
        if why:
            yield Finding("RC09", node, why=why)
            return
    module = node.module.replace(SHIM, FLAX)
    yield Finding("RC09", node, [_path_edit(program.source, node, module)])


def _path_edit(source: Source, node: ast.ImportFrom | ast.alias, text: str) -> Edit:
    """Returns the edit of the module of an import, or of an imported name."""
    start = source.start(node)
    start += len("from") if isinstance(node, ast.ImportFrom) else 0
    tokens = source.tokens_between(start, source.end(node))
    path = list(takewhile(lambda token: token[2] not in ("as", "import"), tokens))
    return Edit(path[0][0], path[-1][1], text)


def of_stars(
    program: Program, find: Callable[[Program], list[Finding]]
) -> Iterator[Finding]:
    """RC09: marks of `import *`, whose names other rules do not see.

    Args:
      program: the file.
      find: returns what the other rules find in a program.
    """
    recurrent = MOVED | {"ConvLSTM", "RNNCellBase"}
    used = _unknown(program, recurrent)
    stars = [
        node
        for node in program.source.nodes
        if _module(node) in (*MODULES, *SHIMS) and node.names[0].name == "*"
    ]
    if not (used and stars):
        return
    star = program.source.start(stars[0].names[0])
    named = [Edit(star, star + 1, f" {', '.join(dict.fromkeys(used))}")]
    by_name = Program(Source(apply(program.source, named)))
    # Both programs have the same lines.
    known, new = (
        {(f.rule, f.why, f.node.lineno) for f in find(each)}
        for each in (program, by_name)
    )
    for node in stars if new - known or len(stars) > 1 else ():
        why = f"`{used[0]}` may come from here: import it by name"
        yield Finding("RC09", node, why=why)


def _unknown(program: Program, names: set[str]) -> list[str]:
    """Returns the given names that the file uses but never binds."""
    return [
        node.id
        for node in program.source.nodes
        if isinstance(node, ast.Name)
        and node.id in names
        and not program.names.lookup(node.id, node)
    ]


def to_rnncells(program: Program) -> Iterator[Finding]:
    """RC09: recurrent names of Flax are imported from this library."""
    for node in program.source.nodes:
        if _module(node) in MODULES:
            yield from _split(program, node)
    yield from _attributes(program)


def _split(program: Program, node: ast.ImportFrom) -> Iterator[Finding]:
    """Yields the rewrite of an import of names, of which some move."""
    source = program.source
    moved = [alias for alias in node.names if alias.name in MOVED]
    stay = [alias for alias in node.names if alias.name not in MOVED]
    if not moved:
        return
    if not stay:
        yield Finding("RC09", node, [_path_edit(source, node, HERE)])
        return
    start, end = source.start(node), source.end(node)
    if any(t[2].startswith("#") for t in source.tokens_between(start, end)):
        yield Finding("RC09", node, why="comments stand between the names: move them")
        return
    # A name is deleted with the text up to the next name that stays.
    last = max(node.names.index(alias) for alias in stay)
    edits = [
        Edit(source.start(alias), source.start(following), "")
        for alias, following in zip(node.names, node.names[1:], strict=False)
        if alias in moved and following in node.names[: last + 1]
    ]
    gone = Edit(source.end(node.names[last]), source.end(node.names[-1]), "")
    names = ", ".join(source.text(alias) for alias in moved)
    edits += [gone, source.statement_behind(node, f"from {HERE} import {names}")]
    yield Finding("RC09", node, edits)


def _attributes(program: Program) -> Iterator[Finding]:
    """Yields the rewrite of attributes of Flax, with the imports that they need."""
    source, done = program.source, set()
    found = sorted(_moved_attributes(program), key=source.start)
    replaced = {node.attr for node in found if not isinstance(node.ctx, ast.Load)}
    is_unknown = bool(_unknown(program, {HERE}))
    for node in found:
        if source.is_skipped(node) or not isinstance(node.ctx, ast.Load):
            continue
        start, end = source.start(node.value), source.end(node.value)
        beside = _imports_needed(program, node)
        if any(t[2].startswith("#") for t in source.tokens_between(start, end)):
            yield Finding("RC09", node, why="comments stand within the name: move them")
        elif source.is_in_string(node):
            yield Finding("RC09", node, why=IN_STRING)
        elif node.attr in replaced:
            why = f"another `{node.attr}` is assigned to the module: import it by name"
            yield Finding("RC09", node, why=why)
        elif any(_is_of_other(program, i) for i in _imports_of(program, node.value)):
            yield Finding("RC09", node, why=OF_OTHER)
        elif beside is None or is_unknown:
            why = f"`{HERE}` is another name here: rename that"
            yield Finding("RC09", node, why=why)
        else:
            edits = [
                source.statement_behind(statement, f"import {HERE}")
                for statement in dict.fromkeys(beside)
                if statement not in done
            ]
            done |= set(beside)
            yield Finding("RC09", node, [Edit(start, end, HERE), *edits])


def _moved_attributes(program: Program) -> Iterator[ast.Attribute]:
    for node in program.source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in MOVED:
            qualified = program.names.qualified(node) or ""
            if qualified.startswith(FLAX) and linen_name(qualified) == node.attr:
                yield node


def _imports_needed(program: Program, node: ast.Attribute) -> list[ast.stmt] | None:
    """Returns the statements after which rnncells must be imported for an attribute.

    They stand beside the imports of Flax, so that the scope and the order are right.
    None if the name `rnncells` has another meaning.
    """
    source, names = program.source, program.names
    imports = _imports_of(program, node.value)
    found = names.lookup(HERE, node)
    if any(binding.imported != HERE for binding in found):
        return None
    scopes = [names.scope_node(statement) for statement in imports]
    for binding in found:
        is_sure = source.parents[binding.node] is names.scope_node(binding.node)
        is_beside = all(binding.node in source.blocks[i] for i in imports)
        is_before = source.end(binding.node) <= source.start(node)
        if is_before and (is_sure or is_beside):
            return []
    if found and any(found is not names.scopes[s].names.get(HERE) for s in scopes):
        return None
    return [_last_of_imports(source, statement) for statement in imports]


def _imports_of(program: Program, node: ast.expr) -> list[ast.stmt]:
    """Returns the statements that import the module of an attribute."""
    while isinstance(node, ast.Attribute):
        node = node.value
    found = program.names.lookup(node.id, node)
    imports = [binding.node for binding in found if binding.imported]
    return imports or _imports_of(program, program.names.value(node))


def _is_of_other(program: Program, statement: ast.stmt) -> bool:
    """Returns whether a statement imports a `global` or `nonlocal` name."""
    scope = program.names.scope_node(statement)
    bound = (name for _, name, _ in bindings(statement))
    return any(program.names.is_of_other(name, scope) for name in bound)


def _last_of_imports(source: Source, statement: ast.stmt) -> ast.stmt:
    """Returns the last import of the block of imports that starts with one."""
    block = source.blocks[statement]
    for following in block[block.index(statement) :]:
        if not isinstance(following, ast.Import | ast.ImportFrom):
            break
        statement = following
    return statement


def each_reason_once(found: list[Finding]) -> list[Finding]:
    """Returns findings with only the first mark of RC09 for each reason in a file."""
    first: dict[str, Finding] = {}
    for finding in sorted(found, key=lambda finding: finding.node.lineno):
        if finding.rule == "RC09" and finding.why:
            first.setdefault(finding.why, finding)
    return [f for f in found if f.rule != "RC09" or first.get(f.why, f) is f]
