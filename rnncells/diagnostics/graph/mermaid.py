"""A backward graph in the language of Mermaid."""

from rnncells.diagnostics.graph.labels import edge_label, node_lines, style
from rnncells.diagnostics.graph.nodes import Graph

_BRACKETS = {"operation": ("[", "]"), "leaf": ("([", "])"), "cut": ("{{", "}}")}


def mermaid(graph: Graph) -> str:
    """Returns a graph in the language of Mermaid."""
    names = {node: f"n{k}" for k, node in enumerate(graph.nodes)}
    lines = ["flowchart TD"]
    for node, name in names.items():
        left, right = _BRACKETS[style(node)]
        label = "<br/>".join(map(_escaped, node_lines(node)))
        lines.append(f'  {name}{left}"{label}"{right}')
    for number, edge in enumerate(graph.results):
        lines.append(f'  r{number}["{_escaped(edge.operand)}"]')
        lines.append(_edge(names, f"r{number}", edge))
    for node, name in names.items():
        lines += [_edge(names, name, edge) for edge in node.edges]
    return "\n".join(filter(None, lines)) + "\n"


def _edge(names, start, edge):
    if edge.node is None:
        return None
    arrow = "-->" if edge.carries_gradient else "-.->"
    return f'  {start} {arrow}|"{_escaped(edge_label(edge))}"| {names[edge.node]}'


def _escaped(text: str) -> str:
    """Writes characters with a meaning in Mermaid as entities."""
    return "".join(
        char if char.isalnum() or char in " .,;:=+-*/^()" else f"#{ord(char)};"
        for char in text
    )
