"""Renames parameters to those of another module with the same cells and layers."""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flax import traverse_util

from rnncells.interop.loading import plain

# Names of the two directions of a bidirectional layer, which are numbered like series.
DIRECTIONS = {"forward_rnn": "0", "backward_rnn": "1"}
GATE = re.compile(r"i[ifgorzn]|h[ifgorzn]|if|in|ih|hh")
# Number of shapes that an error shows for one module.
SHOWN = 3
# Nested dictionaries of arrays, and of numbers and text in a training state.
State = dict[str, Any]
Path = tuple[str, ...]
Leaves = dict[Path, Any]
# The collection of a module, and the names and shapes of its parameters.
Signature = tuple[Path, frozenset[tuple[Path, tuple[int, ...]]]]
Modules = dict[Path, Signature]


def rename(params: State, like: State, names: Mapping[str, str] | None = None) -> State:
    """Returns parameters with the names of another tree.

    A state may have variables instead of parameters as its `params`, as in
    `TrainState.create(params=model.init(key, x))`. The nesting of `params` is kept,
    unless `like` is a whole state with all collections of `params`; then the result is
    nested like `like`.

    Args:
      params: parameters, variables, or a training state with `params`. Leaves that
        belong to no module, such as the number of steps, do not change.
      like: tree with the new names, of arrays or of `jax.ShapeDtypeStruct`s, as
        `jax.eval_shape(model.init, key, inputs)` returns it, or a `flax.nnx.State`. For
        a training state, the new parameters or variables are enough.
      names: old and new paths of modules to match by hand, for example
        `{"params/Dense_0": "params/head"}`.

    Raises:
      ValueError: the error lists modules without a match, or with several.
    """
    params = plain(params)
    moved, new = _moves(params, like, names or {}), {}
    flat = traverse_util.flatten_dict(params, keep_empty_nodes=True)
    for path, leaf in flat.items():
        module = _module(path)
        new[moved.get(module, module) + path[len(module) :]] = leaf
    return traverse_util.unflatten_dict(new)


def mapping(
    params: State, like: State, names: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the old and new paths of all modules that move; see `rename`.

    Modules match if their parameters have the same names and shapes. If several modules
    are alike, modules with equal paths on both sides match. Otherwise the modules match
    in order, if their names differ only by numbers, or by forward and backward.
    """
    moved = _moves(params, like, names or {})
    return {
        "/".join(path): "/".join(other)
        for path, other in sorted(moved.items())
        if path != other
    }


def _moves(params: State, like: State, names: Mapping[str, str]) -> dict[Path, Path]:
    """Returns the new path of each module and of each copy of a module."""
    ours, theirs = _collections(plain(params)), _collections(plain(like))
    if not set(_roots(ours)) < ours.keys() <= theirs.keys():
        # `like` is not a whole state, so its nesting of `params` does not matter.
        ours, theirs = _opened(ours), _opened(theirs)
    roots = _roots(ours)
    theirs = _placed(theirs, roots)
    following = {c for tree in (ours, theirs) for c, *_ in _copies(tree, roots)}
    matched = [
        collection
        for collection in ours
        if collection in roots or (collection in theirs and collection not in following)
    ]
    moved = _match(_modules(ours, matched), _modules(theirs, matched), names)
    for _, place, original, module in _copies(ours, matched):
        if original + module in moved:
            new = moved[original + module][len(original) :]
            moved[place + module] = place + new
    return moved


def _collections(tree: State) -> dict[Path, Leaves]:
    """Returns the leaves of `params` and its siblings, or of the tree, by path."""
    flat = traverse_util.flatten_dict(tree, keep_empty_nodes=True)
    starts = [path.index("params") for path in flat if "params" in path[:-1]]
    depth = min(starts, default=-1) + 1
    collections: dict[Path, Leaves] = {(): {}} if depth == 0 else {}
    for path, leaf in flat.items():
        collections.setdefault(path[:depth], {})[path[depth:]] = leaf
    return collections


def _roots(collections: Iterable[Path]) -> list[Path]:
    return [path for path in collections if path[-1:] in ((), ("params",))]


def _opened(collections: dict[Path, Leaves]) -> dict[Path, Leaves]:
    """Splits `params` that are variables into the collections of the variables."""
    opened = dict(collections)
    for root in _roots(collections):
        if _are_variables(collections[root]):
            for rest, leaf in opened.pop(root).items():
                opened.setdefault(root + rest[:1], {})[rest[1:]] = leaf
    return opened


def _are_variables(leaves: Leaves) -> bool:
    """Returns whether the leaves of `params` are variables, which have `params`."""
    inner = [path for path in leaves if path[:1] == ("params",) and path[1:]]
    # A layer may also be called `params`; then it contains arrays.
    return len(inner) == len(leaves) > 0 or any(len(path) > 2 for path in inner)


def _placed(theirs: dict[Path, Leaves], roots: list[Path]) -> dict[Path, Leaves]:
    """Moves the collections of `like` to the paths that they have in our tree."""
    their_roots, placed = _roots(theirs), dict(theirs)
    alone = len(roots) == len(their_roots) == 1
    for root, other in itertools.product(roots, their_roots):
        if root != other and (alone or _owner(root) == _owner(other)):
            for place in [place for place in theirs if place[:-1] == other[:-1]]:
                moved = root if place == other else root[:-1] + place[-1:]
                placed[moved] = placed.pop(place)
    return placed


def _owner(root: Path) -> Path:
    """Returns the path of the network that the parameters belong to."""
    return tuple(name for name in root if name != "params")


def _copies(
    collections: dict[Path, Leaves], originals: list[Path]
) -> Iterator[tuple[Path, Path, Path, Path]]:
    """Yields the copies of modules in other collections.

    Each copy is `(collection, place, original, module)`: `place` is the path of the
    copied tree, `original` the collection that it copies, `module` a path in both.
    """
    for collection in collections.keys() - set(originals):
        for rest in collections[collection]:
            path = collection + rest
            for start in range(1, len(path)):
                place, tail = path[:start], path[start:]
                fits = [c for c in originals if tail in collections.get(c, {})]
                if fits:
                    # With several networks, an optimizer belongs to the nearest one.
                    shared = [os.path.commonprefix([other, path]) for other in fits]
                    nearest = fits[shared.index(max(shared, key=len))]
                    module = _module(nearest + tail)[len(nearest) :]
                    yield collection, place, nearest, module
                    break


def _modules(collections: dict[Path, Leaves], matched: list[Path]) -> Modules:
    """Returns the names and shapes of the parameters of each module, by path."""
    modules: dict[Path, list] = {}
    for collection in matched:
        for rest, leaf in collections.get(collection, {}).items():
            # Leaves without shape are numbers, text, or empty dictionaries.
            if rest and hasattr(leaf, "shape"):
                path = collection + rest
                module = _module(path)
                leaves = modules.setdefault(module, [collection])
                leaves.append((path[len(module) :], tuple(leaf.shape)))
    return {
        module: (collection, frozenset(leaves))
        for module, (collection, *leaves) in modules.items()
    }


def _match(old: Modules, new: Modules, names: Mapping[str, str]) -> dict[Path, Path]:
    """Returns the new path of each module; see `mapping`."""
    moved = _by_hand(old, new, names)
    left = [path for path in old if path not in moved]
    free = [path for path in new if path not in moved.values()]
    for signature in dict.fromkeys(map(old.get, left)):
        ours = sorted((p for p in left if old[p] == signature), key=_order)
        theirs = sorted((p for p in free if new[p] == signature), key=_order)
        are_series = _are_series(ours) and _are_series(theirs)
        if set(ours) == set(theirs):
            moved |= zip(ours, ours, strict=True)
        elif len(ours) == len(theirs) and are_series:
            moved |= zip(ours, theirs, strict=True)
    lost = {path: old[path] for path in old if path not in moved}
    extra = {path: new[path] for path in new if path not in moved.values()}
    if lost or extra:
        raise ValueError(_mismatch(lost, extra))
    return moved


def _by_hand(old: Modules, new: Modules, names: Mapping[str, str]) -> dict[Path, Path]:
    """Checks and returns the modules that are matched by hand."""
    ours, theirs = ({"/".join(path): path for path in paths} for paths in (old, new))
    for name, other in names.items():
        for path, side in ((name, ours), (other, theirs)):
            if path not in side:
                raise ValueError(
                    f"`names` must be paths of modules, some of "
                    f"{', '.join(sorted(side))}; got {path!r}."
                )
        if old[ours[name]] != new[theirs[other]]:
            raise ValueError(
                "`names` must match modules with equal parameters, got "
                f"{name!r} with {_shapes(old[ours[name]])}, and {other!r} with "
                f"{_shapes(new[theirs[other]])}."
            )
    if len(set(names.values())) < len(names):
        raise ValueError(f"`names` must match each module once, got {dict(names)}.")
    return {ours[name]: theirs[other] for name, other in names.items()}


def _mismatch(lost: Modules, extra: Modules) -> str:
    """Returns the error message about modules that do not match one to one."""
    lines, hint = [], ""
    for path, signature in lost.items():
        name, shapes = "/".join(path), _shapes(signature)
        candidates = ["/".join(p) for p in extra if extra[p] == signature]
        if candidates:
            lines.append(f"{name} could be {' or '.join(candidates)}: {shapes}")
            hint = hint or (
                "\nMatch them by hand: pass `names`, or "
                f"`--name {name}={candidates[0]}` on the command line."
            )
        else:
            lines.append(f"{name} has no equal in `like`: {shapes}")
    lines += [
        f"{'/'.join(path)} of `like` has no equal in `params`: {_shapes(signature)}"
        for path, signature in extra.items()
        if signature not in lost.values()
    ]
    title = "modules of `params` and `like` must match one to one:"
    return "\n  ".join([title, *lines]) + hint


def _shapes(signature: Signature) -> str:
    """Returns the shapes of a module's parameters, as text."""
    leaves = sorted(signature[1])
    shown = [f"{'/'.join(name)} {shape}" for name, shape in leaves[:SHOWN]]
    rest = [f"{len(leaves) - SHOWN} more"] if len(leaves) > SHOWN else []
    return ", ".join(shown + rest)


def _module(path: Path) -> Path:
    """Returns the path of a parameter's module; for a gate, the path of the cell."""
    module = path[:-1]
    is_gate = len(module) > 1 and GATE.fullmatch(module[-1])
    return module[:-1] if is_gate else module


def _are_series(paths: list[Path]) -> bool:
    """Says whether paths differ only by numbers."""
    return len({tuple(name for name, _ in _order(path)) for path in paths}) == 1


def _order(path: Path) -> list[tuple[str, int]]:
    """Returns the sort key of a path, with numbers in names as numbers."""
    parts = [DIRECTIONS.get(part, part) for part in path]
    # The pattern matches every string.
    splits: Any = (re.fullmatch(r"(.*?)(\d*)", part) for part in parts)
    return [(split[1], int(split[2] or 0)) for split in splits]
