"""Parameters under other names: of the same cells and layers, in another module.

A cell's gates have the same names everywhere, but the module around them decides the
path to them:

===================================== ===============================================
a cell of Flax or of ours             path to its gates
===================================== ===============================================
in a compact method                   `LSTMCell_0`
lifted there by `nn.scan`             `ScanLSTMCell_0`
in `RNN`, in `setup` or by itself     `rnn/cell`, `cell`
in `Bidirectional`                    `forward_rnn/cell`, `backward_rnn/cell`
in `rnncells.LSTM` and its likes      `layers_0/cell`, `layers_0/forward_rnn/cell`
===================================== ===============================================

`rename` moves a tree from one to another, by a tree that has the new names:

>>> import flax.linen as nn, jax, jax.numpy as jnp, rnncells
>>> from rnncells.interop import renaming
>>> class Old(nn.Module):
...     @nn.compact
...     def __call__(self, x):
...         return nn.RNN(nn.LSTMCell(4))(x)
>>> x, key = jnp.ones((2, 5, 3)), jax.random.key(0)
>>> old, new = Old().init(key, x), jax.eval_shape(rnncells.LSTM(4).init, key, x)
>>> renaming.mapping(old, new)
{'params/LSTMCell_0': 'params/layers_0/cell'}
>>> y, _ = rnncells.LSTM(4).apply(renaming.rename(old, new), x)
>>> bool(jnp.allclose(y, Old().apply(old, x), atol=1e-6))
True

A training state, `flax.serialization.to_state_dict(state)`, is renamed as a whole: what
repeats the names of parameters, as the moments of an optimizer, follows them.
"""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flax import traverse_util

from rnncells.interop.layout import Params

# What the modules around them call the cells of two directions, in their order.
DIRECTIONS = {"forward_rnn": "0", "backward_rnn": "1"}
GATE = re.compile(r"i[ifgorzn]|h[ifgorzn]|if|in|ih|hh")
# So many shapes tell what is wrong.
SHOWN = 3
Path = tuple[str, ...]
Leaves = dict[Path, Any]
# Where a module's parameters are collected, and their names and shapes.
Signature = tuple[Path, frozenset[tuple[Path, tuple[int, ...]]]]
Modules = dict[Path, Signature]


def rename(
    params: Params, like: Params, names: Mapping[str, str] | None = None
) -> Params:
    """Returns parameters under the names of another tree.

    Where a state keeps variables as its `params`, and in its moments, as that of
    `TrainState.create(params=model.init(key, x))`, it does so after, and keeps bare
    parameters as such. A `like` that is a whole state, with all that `params` has
    beside its parameters, decides that too: the result is nested as `like` is.

    Args:
      params: nested dictionaries of arrays: parameters, variables, or a training state
        that has `params` in it. What is of no module stays, as the number of steps.
      like: a tree with the new names, of arrays or `jax.ShapeDtypeStruct`s, as
        `jax.eval_shape(model.init, key, inputs)` returns it; of a training state, its
        parameters are enough, or its variables.
      names: paths of modules, old and new, where they are to be matched by hand:
        `{"params/Dense_0": "params/head"}`.

    Raises:
      ValueError: modules that have no match, or several; all are named.
    """
    moved, new = _moves(params, like, names or {}), {}
    flat = traverse_util.flatten_dict(params, keep_empty_nodes=True)
    for path, leaf in flat.items():
        module = _module(path)
        new[moved.get(module, module) + path[len(module) :]] = leaf
    return traverse_util.unflatten_dict(new)


def mapping(
    params: Params, like: Params, names: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the paths of modules that move, and where to; see `rename`.

    Modules match that have parameters of the same names and shapes. Of several that are
    alike, names stay if they are the same on both sides; else the first matches the
    first, if their names differ by numbers, or by forward and backward, alone.
    """
    moved = _moves(params, like, names or {})
    return {
        "/".join(path): "/".join(other)
        for path, other in sorted(moved.items())
        if path != other
    }


def _moves(params: Params, like: Params, names: Mapping[str, str]) -> dict[Path, Path]:
    """Returns where each module goes that matches one, or follows one that does."""
    ours, theirs = _collections(params), _collections(like)
    if not set(_roots(ours)) < ours.keys() <= theirs.keys():
        # `like` is no whole state: whether `params` are variables in it says nothing.
        ours, theirs = _opened(ours), _opened(theirs)
    roots = _roots(ours)
    theirs = _placed(theirs, roots)
    following = {c for tree in (ours, theirs) for c, *_ in _copies(tree, roots)}
    matched = [
        collection
        for collection in ours
        if collection in roots or (collection in theirs and collection not in following)
    ]
    found = _match(_modules(ours, matched), _modules(theirs, matched), names)
    for _, place, original, module in _copies(ours, matched):
        if original + module in found:
            new = found[original + module][len(original) :]
            found[place + module] = place + new
    return found


def _collections(tree: Params) -> dict[Path, Leaves]:
    """Returns the leaves of `params` and of what stands beside it, by their places.

    A tree without `params` is a collection itself.
    """
    flat = traverse_util.flatten_dict(tree, keep_empty_nodes=True)
    starts = [path.index("params") for path in flat if "params" in path[:-1]]
    depth = min(starts, default=-1) + 1
    found: dict[Path, Leaves] = {(): {}} if depth == 0 else {}
    for path, leaf in flat.items():
        found.setdefault(path[:depth], {})[path[depth:]] = leaf
    return found


def _roots(collections: Iterable[Path]) -> list[Path]:
    return [path for path in collections if path[-1:] in ((), ("params",))]


def _opened(collections: dict[Path, Leaves]) -> dict[Path, Leaves]:
    """Returns collections with those of variables, where those are in `params`."""
    found = dict(collections)
    for root in _roots(collections):
        if _are_variables(collections[root]):
            for rest, leaf in found.pop(root).items():
                found.setdefault(root + rest[:1], {})[rest[1:]] = leaf
    return found


def _are_variables(leaves: Leaves) -> bool:
    """Says whether `params` have `params`, by the paths in them."""
    inner = [path for path in leaves if path[:1] == ("params",) and path[1:]]
    # A layer among others may be called `params` too: it has arrays in it.
    return len(inner) == len(leaves) > 0 or any(len(path) > 2 for path in inner)


def _placed(theirs: dict[Path, Leaves], roots: list[Path]) -> dict[Path, Leaves]:
    """Returns the collections of `like` with `params`, and what is beside, as in ours.

    One file may have parameters alone, and the other those of a training state.
    """
    their_roots, found = _roots(theirs), dict(theirs)
    alone = len(roots) == len(their_roots) == 1
    for root, other in itertools.product(roots, their_roots):
        if root != other and (alone or _owner(root) == _owner(other)):
            for place in [place for place in theirs if place[:-1] == other[:-1]]:
                moved = root if place == other else root[:-1] + place[-1:]
                found[moved] = found.pop(place)
    return found


def _owner(root: Path) -> Path:
    """Returns the path of the network that parameters are of, one of several."""
    return tuple(name for name in root if name != "params")


def _copies(
    collections: dict[Path, Leaves], originals: list[Path]
) -> Iterator[tuple[Path, Path, Path, Path]]:
    """Yields where modules are repeated outside of the collections that they are of.

    These are the collection there, the place in it, the collection that they are of,
    and the path of the module from either.
    """
    for collection in collections.keys() - set(originals):
        for rest in collections[collection]:
            path = collection + rest
            for start in range(1, len(path)):
                place, tail = path[:start], path[start:]
                fits = [c for c in originals if tail in collections.get(c, {})]
                if fits:
                    # Of two networks, an optimizer is that of the one beside it.
                    shared = [os.path.commonprefix([other, path]) for other in fits]
                    nearest = fits[shared.index(max(shared, key=len))]
                    module = _module(nearest + tail)[len(nearest) :]
                    yield collection, place, nearest, module
                    break


def _modules(collections: dict[Path, Leaves], matched: list[Path]) -> Modules:
    """Returns the names and shapes of the parameters of each module, by its path."""
    found: dict[Path, list] = {}
    for collection in matched:
        for rest, leaf in collections.get(collection, {}).items():
            # What has none is no array, but a number, text, or an empty dictionary.
            if rest and hasattr(leaf, "shape"):
                path = collection + rest
                module = _module(path)
                leaves = found.setdefault(module, [collection])
                leaves.append((path[len(module) :], tuple(leaf.shape)))
    return {
        module: (collection, frozenset(leaves))
        for module, (collection, *leaves) in found.items()
    }


def _match(old: Modules, new: Modules, names: Mapping[str, str]) -> dict[Path, Path]:
    """Returns which module is which; see `mapping`."""
    found = _given(old, new, names)
    left = [path for path in old if path not in found]
    free = [path for path in new if path not in found.values()]
    for signature in dict.fromkeys(map(old.get, left)):
        ours = sorted((p for p in left if old[p] == signature), key=_order)
        theirs = sorted((p for p in free if new[p] == signature), key=_order)
        are_series = all(len(set(map(_stem, paths))) == 1 for paths in (ours, theirs))
        if set(ours) == set(theirs):
            found |= zip(ours, ours, strict=True)
        elif len(ours) == len(theirs) and are_series:
            found |= zip(ours, theirs, strict=True)
    lost = {path: old[path] for path in old if path not in found}
    extra = {path: new[path] for path in new if path not in found.values()}
    if lost or extra:
        raise ValueError(_mismatch(lost, extra))
    return found


def _given(old: Modules, new: Modules, names: Mapping[str, str]) -> dict[Path, Path]:
    """Returns the modules that are matched by hand, after a look at them."""
    ours, theirs = ({"/".join(path): path for path in paths} for paths in (old, new))
    for name, other in names.items():
        for path, side in ((name, ours), (other, theirs)):
            if path not in side:
                raise ValueError(
                    f"`names` must match modules, got {path!r}; there are "
                    f"{', '.join(sorted(side))}."
                )
        if old[ours[name]] != new[theirs[other]]:
            raise ValueError(
                "`names` must match modules of the same parameters, got "
                f"{name!r}, {_shapes(old[ours[name]])}, and {other!r}, "
                f"{_shapes(new[theirs[other]])}."
            )
    if len(set(names.values())) < len(names):
        raise ValueError(f"`names` must match each module once, got {dict(names)}.")
    return {ours[name]: theirs[other] for name, other in names.items()}


def _mismatch(lost: Modules, extra: Modules) -> str:
    """Returns what there is to say of modules that do not match one to one."""
    lines, told, hint = [], set(), ""
    for path, signature in lost.items():
        name, shapes = "/".join(path), _shapes(signature)
        alike = [p for p in extra if extra[p] == signature]
        # The same module of another size, or the first that could be.
        left = {p: extra[p] for p in (path, *extra) if p in extra.keys() - told}
        resized = [p for p in left if _fits(signature, left[p])]
        if alike:
            others = ["/".join(p) for p in alike]
            lines.append(f"{name} may be {' or '.join(others)}: {shapes}")
            hint = hint or f"\n`names` match by hand, as `--name {name}={others[0]}`."
        elif resized:
            alike = resized[:1]
            here, there = signature, extra[alike[0]]
            lines.append(
                f"{name} has {_shapes(here, there)}, and {'/'.join(alike[0])} of "
                f"`like` {_shapes(there, here)}"
            )
        else:
            lines.append(f"{name} is not in `like`: {shapes}")
        told |= set(alike)
    lines += [
        f"{'/'.join(path)} is in `like` alone: {_shapes(signature)}"
        for path, signature in extra.items()
        if path not in told
    ]
    return "\n  ".join(["modules must match one to one, got", *lines]) + hint


def _fits(one: Signature, other: Signature) -> bool:
    """Says whether two modules differ by shapes alone."""
    names = [{name for name, _ in leaves} for _, leaves in (one, other)]
    return one[0] == other[0] and names[0] == names[1]


def _shapes(signature: Signature, other: Signature | None = None) -> str:
    """Returns the shapes of a module's parameters, of those that another lacks."""
    leaves = sorted(signature[1] - (other[1] if other else set()))
    shown = [f"{'/'.join(name)} {shape}" for name, shape in leaves[:SHOWN]]
    rest = [f"{len(leaves) - SHOWN} more"] if len(leaves) > SHOWN else []
    return ", ".join(shown + rest)


def _module(path: Path) -> Path:
    """Returns the path of the module that a parameter is of: of a gate, its cell's."""
    module = path[:-1]
    is_gate = len(module) > 1 and GATE.fullmatch(module[-1])
    return module[:-1] if is_gate else module


def _stem(path: Path) -> Path:
    """Returns a path without what tells the modules of a series apart."""
    return tuple(name for name, _ in _order(path))


def _order(path: Path) -> list[tuple[str, int]]:
    """Returns what paths are sorted by: numbers in names as numbers."""
    parts = [DIRECTIONS.get(part, part) for part in path]
    splits = (re.fullmatch(r"(.*?)(\d*)", part).groups() for part in parts)
    return [(name, int(number or 0)) for name, number in splits]
