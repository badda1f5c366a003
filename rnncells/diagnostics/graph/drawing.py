"""A backward graph in the languages of Graphviz and Mermaid, and as a picture."""

import shutil
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING

from rnncells.diagnostics.graph.nodes import Accumulate, Cut, Edge, Node, Operation

if TYPE_CHECKING:
    from rnncells.diagnostics.graph.backward_graph import BackwardGraph

_LONGEST = 44
_SHAPES = {Accumulate: "ellipse", Cut: "octagon", Edge: "plain"}
_BRACKETS = {Accumulate: ("([", "])"), Cut: ("{{", "}}")}


def dot(graph: "BackwardGraph") -> str:
    """Returns a graph in the language of Graphviz."""

    def node_line(name: str, kind: type, lines: list[str]) -> str:
        shape = _SHAPES.get(kind, "box")
        return f"  {name} [shape={shape}, label={_quoted(lines)}];"

    def edge_line(start: str, end: str, edge: Edge) -> str:
        dashed = "" if edge.carries_gradient else ", style=dashed"
        return f"  {start} -> {end} [label={_quoted([_edge_label(edge)])}{dashed}];"

    head = f"digraph {_quoted([graph.name])} {{"
    style = "  node [fontname=monospace, style=filled, fillcolor=azure];"
    return "\n".join([head, style, *_lines(graph, node_line, edge_line), "}"]) + "\n"


def mermaid(graph: "BackwardGraph") -> str:
    """Returns a graph in the language of Mermaid."""

    def node_line(name: str, kind: type, lines: list[str]) -> str:
        left, right = _BRACKETS.get(kind, ("[", "]"))
        return f'  {name}{left}"{"<br/>".join(map(_escaped, lines))}"{right}'

    def edge_line(start: str, end: str, edge: Edge) -> str:
        arrow = "-->" if edge.carries_gradient else "-.->"
        return f'  {start} {arrow}|"{_escaped(_edge_label(edge))}"| {end}'

    return "\n".join(["flowchart TD", *_lines(graph, node_line, edge_line)]) + "\n"


def svg(graph: "BackwardGraph") -> str:
    """Returns a picture of a graph that Graphviz draws, as an SVG file."""
    if not can_draw():
        raise RuntimeError(
            "`svg` needs the program `dot`, which is not in the PATH. Install Graphviz "
            "(https://graphviz.org/download), or use `mermaid()`."
        )
    result = subprocess.run(
        ["dot", "-Tsvg"], input=dot(graph), capture_output=True, check=True, text=True
    )
    return result.stdout


def can_draw() -> bool:
    """Says whether Graphviz is installed."""
    return shutil.which("dot") is not None


def _lines(
    graph: "BackwardGraph",
    node_line: Callable[[str, type, list[str]], str],
    edge_line: Callable[[str, str, Edge], str],
) -> list[str]:
    """Returns the lines of nodes, results and edges."""
    names: dict[Node | None, str] = {n: f"n{k}" for k, n in enumerate(graph.nodes)}
    lines = [node_line(names[n], type(n), _label(n)) for n in graph.nodes]
    edges = [(f"r{k}", edge) for k, edge in enumerate(graph.results)]
    lines += [node_line(name, Edge, [edge.operand]) for name, edge in edges]
    edges += [(names[node], edge) for node in graph.nodes for edge in node.edges]
    return lines + [
        edge_line(start, names[edge.node], edge)
        for start, edge in edges
        if edge.node is not None
    ]


def _label(node: Node) -> list[str]:
    """Returns the lines of a node's label."""
    if isinstance(node, Accumulate):
        return [node.name, node.argument, str(node.outputs[0])]
    if isinstance(node, Cut):
        return [node.name, node.reason, *node.arguments[:3]]
    assert isinstance(node, Operation)
    lines = [node.label, node.forward, *node.backward.split("; ")]
    if node.saved:
        formulas = ", ".join(value.formula for value in node.saved)
        nbytes = sum(value.nbytes for value in node.saved)
        lines.append(f"saves {formulas}: {nbytes} B")
    return [s if len(s) <= _LONGEST else s[: _LONGEST - 3] + "..." for s in lines]


def _edge_label(edge: Edge) -> str:
    """Returns the number of the output, and the shape and dtype."""
    return f"{edge.output}: {edge.type}"


def _quoted(lines: list[str]) -> str:
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'


def _escaped(text: str) -> str:
    """Writes characters with a meaning in Mermaid as entities."""
    return "".join(
        char if char.isalnum() or char in " .,;:=+-*/^()" else f"#{ord(char)};"
        for char in text
    )
