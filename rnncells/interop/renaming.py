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
"""

import re
from collections.abc import Mapping
from typing import Any

from flax import traverse_util

from rnncells.interop.layout import Params, flatten

# What the modules around them call the cells of two directions, in their order.
DIRECTIONS = {"forward_rnn": "0", "backward_rnn": "1"}
GATE = re.compile(r"(i[ifgorzn]|h[ifgorzn]|if|in|ih|hh)$")
Signature = frozenset[tuple[str, tuple[int, ...]]]


def rename(
    params: Params, like: Params, names: Mapping[str, str] | None = None
) -> Params:
    """Returns parameters under the names of another tree.

    Args:
      params: nested dictionaries of arrays.
      like: a tree with the new names, of arrays or `jax.ShapeDtypeStruct`s, as
        `jax.eval_shape(model.init, key, inputs)` returns it.
      names: paths of modules in `params`, and in `like`, where they are to be matched
        by hand: `{"params/Dense_0": "params/head"}`.

    Raises:
      ValueError: modules that have no match, or several; all are named.
    """
    flat, moved = flatten(params), mapping(params, like, names)
    new = {}
    for path, leaf in flat.items():
        module = _module(path)
        new[moved.get(module, module) + path[len(module) :]] = leaf
    return traverse_util.unflatten_dict(new, sep="/")


def mapping(
    params: Params, like: Params, names: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the paths of modules that move, and where to; see `rename`.

    Modules match that have parameters of the same names and shapes. Of several that are
    alike, names stay if they are the same on both sides; else the first matches the
    first, if their names differ by numbers, or by forward and backward, alone.
    """
    old, new = _modules(flatten(params)), _modules(flatten(like))
    found = dict(names or {})
    for path, other in found.items():
        if path not in old or other not in new or old[path] != new[other]:
            raise ValueError(
                f"`names` must match modules of the same parameters, got {path!r} and "
                f"{other!r}; there are {sorted(old)} and {sorted(new)}."
            )
    if len(set(found.values())) < len(found):
        raise ValueError(f"`names` must match each module once, got {found}.")
    left = [path for path in old if path not in found]
    free = [path for path in new if path not in found.values()]
    unmatched = []
    for signature in dict.fromkeys(map(old.get, left)):
        ours = sorted((p for p in left if old[p] == signature), key=_order)
        theirs = sorted((p for p in free if new[p] == signature), key=_order)
        are_series = all(len(set(map(_stem, paths))) == 1 for paths in (ours, theirs))
        if set(ours) == set(theirs):
            found |= zip(ours, ours, strict=True)
        elif len(ours) == len(theirs) and are_series:
            found |= zip(ours, theirs, strict=True)
        else:
            unmatched.append(f"{ours} and {theirs}")
    unmatched += [
        f"[] and {[path]}" for path in free if new[path] not in map(old.get, left)
    ]
    if unmatched:
        raise ValueError(
            "modules must match one to one, got those with the same parameters: "
            f"{'; '.join(unmatched)}. (Give `names`.)"
        )
    return {path: other for path, other in sorted(found.items()) if path != other}


def _modules(flat: dict[str, Any]) -> dict[str, Signature]:
    """Returns the names and shapes of the parameters of each module, by its path."""
    found: dict[str, set] = {}
    for path, leaf in flat.items():
        module = _module(path)
        found.setdefault(module, set()).add((path[len(module) :], tuple(leaf.shape)))
    return {module: frozenset(leaves) for module, leaves in found.items()}


def _module(path: str) -> str:
    """Returns the path of the module that a parameter is of: of a gate, its cell's."""
    module = path.rpartition("/")[0]
    above, _, name = module.rpartition("/")
    return above if above and GATE.fullmatch(name) else module


def _stem(path: str) -> str:
    """Returns a path without what tells the modules of a series apart."""
    return "/".join(name for name, _ in _order(path))


def _order(path: str) -> list[tuple[str, int]]:
    """Returns what paths are sorted by: numbers in names as numbers."""
    parts = [DIRECTIONS.get(part, part) for part in path.split("/")]
    splits = (re.fullmatch(r"(.*?)(\d*)", part).groups() for part in parts)
    return [(name, int(number or 0)) for name, number in splits]
