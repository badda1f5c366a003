"""A backward graph in the language of Graphviz."""

from rnncells.diagnostics.graph.labels import edge_label, node_lines, style
from rnncells.diagnostics.graph.nodes import Graph

_SHAPES = {"operation": "box", "leaf": "ellipse", "cut": "octagon", "result": "plain"}


def dot(graph: Graph) -> str:
    """Returns a graph in the language of Graphviz."""
    names = {node: f"n{k}" for k, node in enumerate(graph.nodes)}
    lines = [f"digraph {_quoted(graph.name)} {{", "  node [fontname=monospace];"]
    for node, name in names.items():
        label = _quoted("\n".join(node_lines(node)))
        lines.append(f"  {name} [shape={_SHAPES[style(node)]}, label={label}];")
    for number, edge in enumerate(graph.results):
        lines.append(f"  r{number} [shape=plain, label={_quoted(edge.operand)}];")
        lines.append(_edge(names, f"r{number}", edge))
    for node, name in names.items():
        lines += [_edge(names, name, edge) for edge in node.edges]
    return "\n".join([*filter(None, lines), "}"]) + "\n"


def _edge(names, start, edge):
    if edge.node is None:
        return None
    dashed = "" if edge.carries_gradient else ", style=dashed"
    label = _quoted(edge_label(edge))
    return f"  {start} -> {names[edge.node]} [label={label}{dashed}];"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
