"""Places for the nodes of a graph: layers from the results down to the leaves.

The method is Sugiyama's in its simplest form. Each node is in the layer after the last
node with an edge to it. An edge over several layers passes through an empty place in
each of them. Places are sorted by the mean position of their neighbours, several times,
so that few edges cross, and they are moved towards these means.

Reference: Sugiyama, Tagawa and Toda, 1981, https://doi.org/10.1109/TSMC.1981.4308636.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

_SWEEPS = 8
# The part of a node's width in which edges start and end.
_PORTS = 0.8


class Size(NamedTuple):
    """Width and height."""

    width: float
    height: float


class Layout(NamedTuple):
    """Where everything is.

    Attributes:
      centers: for each node, the place of its middle, `(x, y)`.
      paths: for each edge, its points: on the bottom of the node where it starts, in
        the layers that it passes, and on the top of the node where it ends.
      size: of the whole picture.
    """

    centers: dict[Hashable, tuple[float, float]]
    paths: list[list[tuple[float, float]]]
    size: Size


def layout(
    sizes: dict[Hashable, Size],
    edges: Sequence[tuple[Hashable, Hashable]],
    gap: Size,
    empty: float,
) -> Layout:
    """Returns places for nodes, so that edges go down.

    Args:
      sizes: the nodes and their sizes.
      edges: pairs of nodes, without cycles.
      gap: between neighbours in a layer, and between layers.
      empty: width of the place of an edge that passes a layer.
    """
    layer_of = _layers(list(sizes), edges)
    chains = [_chain(k, edge, layer_of) for k, edge in enumerate(edges)]
    widths = {node: size.width for node, size in sizes.items()}
    widths |= {place: empty for chain in chains for place in chain[1:-1]}
    count = max(layer_of.values(), default=-1) + 1
    layers: list[list[Hashable]] = [[] for _ in range(count)]
    for node, layer in layer_of.items():
        layers[layer].append(node)
    for chain in chains:
        first = layer_of[chain[0]] + 1
        for layer, place in enumerate(chain[1:-1], first):
            layers[layer].append(place)
    above, below = _neighbours(chains)
    xs = _positions(layers, above, below, widths, gap.width)
    ys, height = _heights(layers, sizes, gap.height)
    level = {place: k for k, layer in enumerate(layers) for place in layer}
    left = min((xs[p] - widths[p] / 2 for p in xs), default=0)
    right = max((xs[p] + widths[p] / 2 for p in xs), default=0)
    xs = {place: x - left for place, x in xs.items()}
    centers = {node: (xs[node], sum(ys[level[node]]) / 2) for node in sizes}
    starts = _ports(chains, 0, 1, xs, widths)
    ends = _ports(chains, -1, -2, xs, widths)
    paths = []
    for k, (start, *passed, end) in enumerate(chains):
        bottom = centers[start][1] + sizes[start].height / 2
        top = centers[end][1] - sizes[end].height / 2
        between = [(xs[p], y) for p in passed for y in ys[level[p]]]
        paths.append([(starts[k], bottom), *between, (ends[k], top)])
    return Layout(centers, paths, Size(right - left, height))


def _ports(chains, at, towards, xs, widths) -> dict[int, float]:
    """Returns where edges meet a node: side by side, in the order of where they go.

    Args:
      chains: the places of all edges.
      at: index of the node in a chain.
      towards: index of the next place.
      xs: the middle of each place.
      widths: the width of each place.
    """
    edges: dict[Hashable, list[int]] = {}
    found: dict[int, float] = {}
    for k, chain in enumerate(chains):
        edges.setdefault(chain[at], []).append(k)
    for node, numbers in edges.items():
        numbers.sort(key=lambda k: (xs[chains[k][towards]], k))
        step = _PORTS * widths[node] / len(numbers)
        for place, k in enumerate(numbers):
            found[k] = xs[node] + step * (place - (len(numbers) - 1) / 2)
    return found


def _layers(nodes, edges) -> dict[Hashable, int]:
    """Returns, for each node, the longest way to it."""
    starts: dict[Hashable, list[Hashable]] = {node: [] for node in nodes}
    for start, end in edges:
        starts[end].append(start)
    found: dict[Hashable, int] = {}
    stack = list(reversed(nodes))
    while stack:
        node = stack[-1]
        missing = [start for start in starts[node] if start not in found]
        if missing:
            stack += missing
        else:
            stack.pop()
            found[node] = max((found[s] + 1 for s in starts[node]), default=0)
    return {node: found[node] for node in nodes}


def _chain(number, edge, layer_of) -> list[Hashable]:
    """Returns an edge as its nodes and the empty places between them."""
    start, end = edge
    between = range(layer_of[start] + 1, layer_of[end])
    return [start, *((number, layer) for layer in between), end]


def _neighbours(chains):
    above, below = {}, {}
    for chain in chains:
        for upper, lower in zip(chain, chain[1:], strict=False):
            below.setdefault(upper, []).append(lower)
            above.setdefault(lower, []).append(upper)
    return above, below


def _positions(layers, above, below, widths, gap):
    """Sorts layers, and returns the middle of each place."""
    xs = {}
    for layer in layers:
        xs |= _packed(layer, widths, gap)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            near = above if down else below
            means = {place: _mean(near.get(place), xs, xs[place]) for place in layer}
            layer.sort(key=means.get)
            xs |= _spread(layer, means, widths, gap)
    return xs


def _mean(places, xs, default):
    return sum(xs[p] for p in places) / len(places) if places else default


def _packed(layer, widths, gap):
    """Returns positions side by side, around 0."""
    total = sum(widths[p] for p in layer) + gap * (len(layer) - 1)
    left, xs = -total / 2, {}
    for place in layer:
        xs[place] = left + widths[place] / 2
        left += widths[place] + gap
    return xs


def _spread(layer, means, widths, gap):
    """Returns positions in the order of a layer, near the wanted ones, without overlap.

    Neighbours that would overlap become a block, which is placed at its mean.
    """
    blocks = []
    for place in layer:
        blocks.append(([place], means[place]))
        while len(blocks) > 1 and _overlap(*blocks[-2:], widths, gap):
            (second, b), (first, a) = blocks.pop(), blocks.pop()
            merged = first + second
            middle = (a * len(first) + b * len(second)) / len(merged)
            blocks.append((merged, middle))
    xs = {}
    for block, middle in blocks:
        packed = _packed(block, widths, gap)
        xs |= {place: middle + x for place, x in packed.items()}
    return xs


def _overlap(left, right, widths, gap):
    def half(block):
        return (sum(widths[p] for p in block) + gap * (len(block) - 1)) / 2

    (first, a), (second, b) = left, right
    return a + half(first) + gap > b - half(second)


def _heights(layers, sizes, gap):
    """Returns the top and the bottom of each layer, and the height of all."""
    ys, top = [], 0.0
    for layer in layers:
        height = max((sizes[p].height for p in layer if p in sizes), default=0.0)
        ys.append((top, top + height))
        top += height + gap
    return ys, top - gap if layers else 0.0
