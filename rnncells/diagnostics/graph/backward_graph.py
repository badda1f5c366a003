"""The backward graph as data, as text, and as a picture."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from rnncells.diagnostics.graph.nodes import (
    Accumulate,
    Cut,
    Edge,
    Node,
    Operation,
    Saved,
)
from rnncells.diagnostics.graph.tape import Program, Tape
from rnncells.recurrence.pytrees import array_text

_Kind = TypeVar("_Kind", bound=Node)
# Shapes of nodes in Graphviz, and brackets around their labels in Mermaid.
_SHAPES = {Accumulate: "ellipse", Cut: "octagon", Edge: "plain"}
_BRACKETS = {Accumulate: ("([", "])"), Cut: ("{{", "}}")}
_LONGEST = 44


@dataclass(frozen=True, eq=False, repr=False)
class BackwardGraph:
    """The operations that reverse-mode differentiation records of a function.

    A graph is data: nothing changes it, and it holds no values of arguments.
    `rnncells.diagnostics.backward_graph` makes it. `print(graph)` shows the text, a
    notebook shows the picture.

    Attributes:
      name: name of the function.
      results: an edge for each leaf of the function's result.
      required: names of the arguments that require a gradient.
      program: what `record` runs; None for the graph inside a node.
    """

    name: str
    results: tuple[Edge, ...]
    required: tuple[str, ...]
    program: Program | None = None

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in the order of the backward pass; leaves and cuts come last."""

        def place(node: Node) -> tuple[int, int]:
            is_operation = isinstance(node, Operation)
            return (0, -node.order) if is_operation else (1 + isinstance(node, Cut), 0)

        return tuple(sorted(_reachable(self.results), key=place))

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The nodes that are operations, in the order of the backward pass."""
        return self._nodes_of(Operation)

    @property
    def leaves(self) -> tuple[Accumulate, ...]:
        """The nodes that add up the gradients of arguments."""
        return self._nodes_of(Accumulate)

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The nodes where gradients end."""
        return self._nodes_of(Cut)

    def _nodes_of(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        return tuple(node for node in self.nodes if isinstance(node, kind))

    @cached_property
    def unreached(self) -> dict[str, str]:
        """For each argument that requires a gradient and gets none, the reason."""
        reached = {leaf.argument for leaf in self.leaves}
        reasons = {name: cut.reason for cut in self.cuts for name in cut.arguments}
        return {
            name: reasons.get(name, "no result depends on it")
            for name in self.required
            if name not in reached
        }

    @cached_property
    def saved(self) -> tuple[Saved, ...]:
        """The values kept for the backward pass, each array once."""
        values = [value for node in self.operations for value in node.saved]
        return tuple({value.of: value for value in reversed(values)}.values())

    @property
    def saved_bytes(self) -> int:
        """Bytes of the values kept for the backward pass, each array once."""
        return sum(value.nbytes for value in self.saved)

    def incoming(self, node: Node) -> list[tuple[Node | None, Edge]]:
        """Returns the edges that lead to a node, with the nodes where they start.

        None stands for the start of the backward pass. The gradients of edges that lead
        to the same output are added up.
        """
        starts = [(None, self.results), *((start, start.edges) for start in self.nodes)]
        return [(start, e) for start, edges in starts for e in edges if e.node is node]

    def text(self) -> str:
        """Returns the graph as text: nodes in the order of the backward pass."""
        lines = [self._headline(), ""]
        lines += [f"{edge.operand} <- {_end(edge)}" for edge in self.results]
        for node in self.operations:
            lines += ["", *_operation_lines(node)]
        if self.leaves:
            lines += ["", "Leaves, where gradients are added up:"]
        for leaf in self.leaves:
            place = array_text(leaf.outputs[0])
            place += f" on {leaf.device}" if leaf.device else ""
            lines.append(f"  {leaf.argument}  {place}  from {self._starts(leaf)}")
        if self.cuts:
            lines += ["", "Cuts, where gradients end:"]
        for cut in self.cuts:
            place = f"before {', '.join(cut.arguments)}"
            lines.append(f"  {cut.reason}, {place}; reached from {self._starts(cut)}")
        if self.unreached:
            lines += ["", "Arguments without a gradient:"]
            lines += [f"  {name}: {why}" for name, why in self.unreached.items()]
        return "\n".join(lines)

    def dot(self) -> str:
        """Returns the graph in the language of Graphviz."""

        def node_line(name: str, kind: type, lines: list[str]) -> str:
            shape = _SHAPES.get(kind, "box")
            return f"  {name} [shape={shape}, label={_quoted(lines)}];"

        def edge_line(start: str, end: str, edge: Edge) -> str:
            label = _quoted([f"{edge.output}: {array_text(edge.type)}"])
            dashed = "" if edge.carries_gradient else ", style=dashed"
            return f"  {start} -> {end} [label={label}{dashed}];"

        head = f"digraph {_quoted([self.name])} {{"
        style = "  node [fontname=monospace, style=filled, fillcolor=azure];"
        lines = [head, style, *self._lines(node_line, edge_line), "}"]
        return "\n".join(lines) + "\n"

    def mermaid(self) -> str:
        """Returns the graph in the language of Mermaid, which GitHub draws."""

        def node_line(name: str, kind: type, lines: list[str]) -> str:
            left, right = _BRACKETS.get(kind, ("[", "]"))
            return f'  {name}{left}"{"<br/>".join(map(_escaped, lines))}"{right}'

        def edge_line(start: str, end: str, edge: Edge) -> str:
            label = _escaped(f"{edge.output}: {array_text(edge.type)}")
            arrow = "-->" if edge.carries_gradient else "-.->"
            return f'  {start} {arrow}|"{label}"| {end}'

        lines = ["flowchart TD", *self._lines(node_line, edge_line)]
        return "\n".join(lines) + "\n"

    def _lines(
        self,
        node_line: Callable[[str, type, list[str]], str],
        edge_line: Callable[[str, str, Edge], str],
    ) -> list[str]:
        """Returns the lines of nodes, results and edges of a picture."""
        names: dict[Node | None, str] = {n: f"n{k}" for k, n in enumerate(self.nodes)}
        lines = [node_line(names[n], type(n), _label(n)) for n in self.nodes]
        edges = [(f"r{k}", edge) for k, edge in enumerate(self.results)]
        lines += [node_line(name, Edge, [edge.operand]) for name, edge in edges]
        edges += [(names[node], edge) for node in self.nodes for edge in node.edges]
        return lines + [
            edge_line(start, names[edge.node], edge)
            for start, edge in edges
            if edge.node is not None
        ]

    def svg(self) -> str:
        """Returns a picture of the graph: an SVG file.

        Raises RuntimeError if Graphviz, a program, is not installed.
        """
        if not shutil.which("dot"):
            raise RuntimeError(
                "`svg` needs the program `dot`, which is not in the PATH. Install "
                "Graphviz (https://graphviz.org/download), or use `mermaid()`."
            )
        options: Any = {"input": self.dot(), "capture_output": True, "text": True}
        return subprocess.run(["dot", "-Tsvg"], check=True, **options).stdout

    def record(self, *args: Any) -> Tape:
        """Runs the function, and returns a tape with what its backward pass needs.

        The arguments have the shapes and dtypes that the graph was made from.

        Raises:
          ValueError: the arguments have another structure, shape or dtype; or the graph
            is that of a node.
        """
        if self.program is None:
            raise ValueError(
                "`record` must be called on the graph of a whole function, got the "
                f"graph inside a node, `{self.name}`."
            )
        return Tape(self, self.program, args)

    def _headline(self) -> str:
        parts = [_counted(len(self.operations), "operation", "operations")]
        parts.append(_counted(len(self.leaves), "leaf", "leaves"))
        parts += [_counted(len(self.cuts), "cut", "cuts")] if self.cuts else []
        parts.append(f"{self.saved_bytes} bytes saved")
        return f"Backward graph of {self.name}: {', '.join(parts)}"

    def _starts(self, node: Node) -> str:
        starts = [start for start, _ in self.incoming(node)]
        return ", ".join("the result" if s is None else s.label for s in starts)

    def __repr__(self) -> str:
        return f"<{self._headline()}>"

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Returns a picture for notebooks: without Graphviz, the notebook draws it."""
        if shutil.which("dot"):
            return {"text/plain": repr(self), "image/svg+xml": self.svg()}
        markdown = f"```mermaid\n{self.mermaid()}```"
        return {"text/plain": repr(self), "text/markdown": markdown}


def _reachable(edges: tuple[Edge, ...]) -> Iterator[Node]:
    """Yields the nodes that edges lead to, each once."""
    seen, stack = set(), list(reversed(edges))
    while stack:
        node = stack.pop().node
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            stack.extend(reversed(node.edges))


def _counted(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _operation_lines(node: Operation) -> list[str]:
    place = f"  on {node.device}" if node.device else ""
    lines = [f"{node.label}: {node.forward}{place}"]
    lines += [f"  backward: {node.backward}", f"  {node.words}"]
    lines += [f"  output {k}: {array_text(x)}" for k, x in enumerate(node.outputs)]
    lines += [f"  d{edge.operand} -> {_end(edge)}" for edge in node.edges]
    lines += [f"  saves {value}" for value in node.saved]
    for graph in node.inner:
        lines += [f"  | {line}".rstrip() for line in graph.text().splitlines()]
    return lines


def _end(edge: Edge) -> str:
    end = "nothing, no gradient is needed" if edge.node is None else edge.node.label
    if isinstance(edge.node, Operation):
        end = f"{end}, output {edge.output}"
    return f"{end}  {array_text(edge.type)}"


def _label(node: Node) -> list[str]:
    """Returns the lines of a node's label."""
    if isinstance(node, Accumulate):
        return [node.name, node.argument, array_text(node.outputs[0])]
    if isinstance(node, Cut):
        return [node.name, node.reason, *node.arguments[:3]]
    assert isinstance(node, Operation)
    lines = [node.label, node.forward, *node.backward.split("; ")]
    if node.saved:
        formulas = ", ".join(value.formula for value in node.saved)
        nbytes = sum(value.nbytes for value in node.saved)
        lines.append(f"saves {formulas}: {nbytes} B")
    return [s if len(s) <= _LONGEST else s[: _LONGEST - 3] + "..." for s in lines]


def _quoted(lines: list[str]) -> str:
    return json.dumps("\n".join(lines), ensure_ascii=False)


def _escaped(text: str) -> str:
    """Writes characters with a meaning in Mermaid as entities."""
    return "".join(
        char if char.isalnum() or char in " .,;:=+-*/^()" else f"#{ord(char)};"
        for char in text
    )
