"""The labels of nodes and edges in pictures."""

from rnncells.diagnostics.graph.nodes import Accumulate, Cut, Edge, Node, Operation

_LONGEST = 44


def style(node: Node) -> str:
    """Returns the kind of a node: `operation`, `leaf` or `cut`."""
    if isinstance(node, Accumulate):
        return "leaf"
    return "cut" if isinstance(node, Cut) else "operation"


def node_lines(node: Node) -> list[str]:
    """Returns the lines of a node's label."""
    if isinstance(node, Accumulate):
        return [node.name, node.argument, str(node.outputs[0])]
    if isinstance(node, Cut):
        return [node.name, node.reason, *node.arguments[:3]]
    assert isinstance(node, Operation)
    lines = [node.label, node.forward, *node.backward.split("; ")]
    if node.saved:
        kept = ", ".join(value.formula for value in node.saved)
        nbytes = sum(value.nbytes for value in node.saved)
        lines.append(f"saves {kept}: {nbytes} B")
    return [_shortened(line) for line in lines]


def edge_label(edge: Edge) -> str:
    """Returns the number of the output, and the shape and dtype."""
    return f"{edge.output}: {edge.type}"


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
