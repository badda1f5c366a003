"""The backward graph that users get: nodes, forms in which to show them, and a run."""

from dataclasses import dataclass
from typing import Any

from rnncells.diagnostics.graph import drawing, text
from rnncells.diagnostics.graph.nodes import Graph
from rnncells.diagnostics.graph.tape import Program, Tape


@dataclass(frozen=True, eq=False, repr=False)
class BackwardGraph(Graph):
    """The operations that reverse-mode differentiation records of a function.

    A graph is data: nothing changes it, and it holds no values of arguments.
    `rnncells.diagnostics.backward_graph` makes it. `print(graph)` shows the text, a
    notebook shows the picture.

    Attributes, in addition to those of `rnncells.diagnostics.graph.nodes.Graph`:
      program: what `record` runs; None for the graph inside a node.
    """

    program: Program | None = None

    def text(self) -> str:
        """Returns the graph as text: nodes in the order of the backward pass."""
        return text.text(self)

    def dot(self) -> str:
        """Returns the graph in the language of Graphviz."""
        return drawing.dot(self)

    def mermaid(self) -> str:
        """Returns the graph in the language of Mermaid, which GitHub draws."""
        return drawing.mermaid(self)

    def svg(self) -> str:
        """Returns a picture of the graph: an SVG file, drawn by Graphviz.

        Raises:
          RuntimeError: Graphviz, a program, is not installed.
        """
        return drawing.svg(self)

    def record(self, *args: Any) -> Tape:
        """Runs the function, and keeps what its backward pass needs.

        Args:
          *args: arguments of the shapes and dtypes that the graph was made from.

        Returns:
          A tape, with the result as `tape.result` and the method `backward`.

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

    def __repr__(self) -> str:
        return f"<{text.headline(self)}>"

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Returns a picture for notebooks: without Graphviz, the notebook draws it."""
        if drawing.can_draw():
            return {"text/plain": repr(self), "image/svg+xml": self.svg()}
        markdown = f"```mermaid\n{self.mermaid()}```"
        return {"text/plain": repr(self), "text/markdown": markdown}
