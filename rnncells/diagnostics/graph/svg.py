"""A backward graph as a picture, an SVG file that is drawn without other programs."""

from typing import Any
from xml.sax.saxutils import escape

from rnncells.diagnostics.graph.labels import edge_label, node_lines, style
from rnncells.diagnostics.graph.layout import Size, layout
from rnncells.diagnostics.graph.nodes import Edge, Graph

Point = tuple[float, float]
# Sizes in pixels. Letters of the monospace fonts are about 0.6 of their size wide.
_FONT, _LETTER, _LINE, _PADDING, _MARGIN = 12, 7.3, 16, 8, 16
_GAP = Size(36, 64)
_EMPTY = 12
# Nodes have their own background, and edges a gray that is readable on white and black.
_GRAY = "#767676"
_FILL = {"operation": "#dbe9f9", "leaf": "#dcf2dd", "cut": "#fbdfdd", "result": "#eee"}
_LINE_COLOR = {
    "operation": "#2b5f9e",
    "leaf": "#2c7a34",
    "cut": "#b3312b",
    "result": "#666",
}


def svg(graph: Graph) -> str:
    """Returns a graph as an SVG file."""
    results = [("result", k) for k, _ in enumerate(graph.results)]
    operands = ([edge.operand] for edge in graph.results)
    lines: dict[Any, list[str]] = dict(zip(results, operands, strict=True))
    lines |= {node: node_lines(node) for node in graph.nodes}
    edges: list[tuple[Any, int, Edge]] = [
        (r, 0, edge) for r, edge in zip(results, graph.results, strict=True)
    ]
    edges += [(node, k, e) for node in graph.nodes for k, e in enumerate(node.edges)]
    edges = [(start, k, edge) for start, k, edge in edges if edge.node is not None]
    sizes = {node: _size(own) for node, own in lines.items()}
    pairs = [(start, edge.node) for start, _, edge in edges]
    placed = layout(sizes, pairs, _GAP, _EMPTY)
    width, height = (n + 2 * _MARGIN for n in placed.size)
    parts = [_head(graph.name, width, height)]
    for (_, number, edge), path in zip(edges, placed.paths, strict=True):
        parts.append(_edge(edge, path, number))
    for node, own in lines.items():
        kind = "result" if isinstance(node, tuple) else style(node)
        parts.append(_node(kind, own, placed.centers[node], sizes[node]))
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _size(lines: list[str]) -> Size:
    longest = max(map(len, lines))
    width = longest * _LETTER + 2 * _PADDING
    return Size(width, len(lines) * _LINE + 2 * _PADDING)


def _head(name: str, width: float, height: float) -> str:
    title = escape(f"Backward graph of {name}")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
            f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'font-family="monospace" font-size="{_FONT}" role="img">',
            f"<title>{title}</title>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" '
            'markerWidth="8" markerHeight="8" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{_GRAY}"/></marker></defs>',
            f'<g transform="translate({_MARGIN} {_MARGIN})">',
        ]
    )


def _node(kind: str, lines: list[str], center: tuple, size: Size) -> str:
    x, y = center[0] - size.width / 2, center[1] - size.height / 2
    radius = size.height / 2 if kind == "leaf" else 4
    dashed = ' stroke-dasharray="5 3"' if kind == "cut" else ""
    parts = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{size.width:.1f}" '
        f'height="{size.height:.1f}" rx="{min(radius, 24):.1f}" '
        f'fill="{_FILL[kind]}" stroke="{_LINE_COLOR[kind]}"{dashed}/>'
    ]
    for number, line in enumerate(lines):
        base = y + _PADDING + number * _LINE + _FONT
        bold = ' font-weight="bold"' if number == 0 else ""
        parts.append(
            f'<text x="{center[0]:.1f}" y="{base:.1f}" text-anchor="middle" '
            f'fill="#1a1a1a"{bold}>{escape(line)}</text>'
        )
    return "\n".join(parts)


def _edge(edge: Edge, path: list[Point], number: int) -> str:
    """Draws an edge from the bottom of a node to the top of another.

    Args:
      edge: the edge.
      path: its points.
      number: its number among the edges of its node; neighbours have their labels at
        other heights.
    """
    curve = [f"M{path[0][0]:.1f} {path[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in zip(path, path[1:], strict=False):
        middle = (y0 + y1) / 2
        curve.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
    dashed = "" if edge.carries_gradient else ' stroke-dasharray="5 3"'
    x, y = _on_curve(path[0], path[1], 0.4 if number % 2 else 0.65)
    return "\n".join(
        [
            f'<path d="{" ".join(curve)}" fill="none" stroke="{_GRAY}" '
            f'marker-end="url(#arrow)"{dashed}/>',
            f'<text x="{x + 4:.1f}" y="{y:.1f}" fill="{_GRAY}" font-size="10">'
            f"{escape(edge_label(edge))}</text>",
        ]
    )


def _on_curve(start: Point, end: Point, part: float) -> Point:
    """Returns a point on a curve that leaves and reaches its ends vertically."""
    (x0, y0), (x1, y1) = start, end
    rest = 1 - part
    middle = (y0 + y1) / 2
    x = rest**2 * (1 + 2 * part) * x0 + part**2 * (3 - 2 * part) * x1
    y = rest**3 * y0 + 3 * rest * part * middle + part**3 * y1
    return x, y
