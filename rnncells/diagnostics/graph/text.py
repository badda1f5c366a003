"""A backward graph as text."""

from rnncells.diagnostics.graph.nodes import (
    Accumulate,
    Cut,
    Edge,
    Graph,
    Node,
    Operation,
)


def text(graph: Graph) -> str:
    """Returns a graph as lines, one block for each operation, then leaves and cuts."""
    lines = [headline(graph), ""]
    for edge in graph.results:
        lines.append(f"{edge.operand} <- {_end(edge)}")
    for node in graph.operations:
        lines += ["", *_operation(node)]
    if graph.leaves:
        lines += ["", "Leaves, where gradients are added up:"]
        lines += [f"  {_leaf(graph, leaf)}" for leaf in graph.leaves]
    if graph.cuts:
        lines += ["", "Cuts, where gradients end:"]
        lines += [f"  {_cut(graph, cut)}" for cut in graph.cuts]
    if graph.unreached:
        lines += ["", "Arguments without a gradient:"]
        lines += [f"  {name}: {reason}" for name, reason in graph.unreached.items()]
    return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun.

    >>> counted(1, "leaf"), counted(2, "leaf"), counted(0, "operation")
    ('1 leaf', '2 leaves', '0 operations')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1] + 'ves' if noun.endswith('f') else noun + 's'}"


def headline(graph: Graph) -> str:
    """Returns the name of the function, and what its graph has."""
    parts = [counted(len(graph.operations), "operation")]
    parts.append(counted(len(graph.leaves), "leaf"))
    parts += [counted(len(graph.cuts), "cut")] if graph.cuts else []
    parts.append(f"{graph.saved_bytes} bytes saved")
    return f"Backward graph of {graph.name}: {', '.join(parts)}"


def _operation(node: Operation) -> list[str]:
    place = f"  on {node.device}" if node.device else ""
    lines = [f"{node.label}: {node.forward}{place}"]
    lines.append(f"  backward: {node.backward}")
    lines.append(f"  {node.words}")
    for number, kind in enumerate(node.outputs):
        lines.append(f"  output {number}: {kind}")
    for edge in node.edges:
        lines.append(f"  d{edge.operand} -> {_end(edge)}")
    for value in node.saved:
        lines.append(f"  saves {value}")
    for graph in node.inner:
        lines += [f"  | {line}".rstrip() for line in text(graph).splitlines()]
    return lines


def _end(edge: Edge) -> str:
    if edge.node is None:
        return f"nothing, no gradient is needed  {edge.type}"
    if isinstance(edge.node, Accumulate | Cut):
        return f"{edge.node.label}  {edge.type}"
    return f"{edge.node.label}, output {edge.output}  {edge.type}"


def _leaf(graph: Graph, leaf: Accumulate) -> str:
    place = f" on {leaf.device}" if leaf.device else ""
    starts = ", ".join(_start(node) for node, _ in graph.incoming(leaf))
    return f"{leaf.argument}  {leaf.outputs[0]}{place}  from {starts}"


def _cut(graph: Graph, cut: Cut) -> str:
    starts = ", ".join(_start(node) for node, _ in graph.incoming(cut))
    behind = ", ".join(cut.arguments)
    return f"{cut.reason}, before {behind}; reached from {starts}"


def _start(node: Node | None) -> str:
    return "the result" if node is None else node.label
