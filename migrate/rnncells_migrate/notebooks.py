"""Jupyter notebooks: the Python code of the cells as one module, and back.

Lines in IPython's own syntax (`%magic`, `!command`, `name?`, `%%bash` cells) become
`pass` in that module, with the original line in a comment. In the file, only the text
of cells that change is replaced.
"""

import ast
import json
import re
from itertools import accumulate
from typing import Any

# A character for private use, which no program contains.
PRIVATE = "\ue000"
# The line above the code of each cell.
CELL = f"pass#{PRIVATE}code cell "
CELLS = re.compile(rf"^{CELL}\d+\n", re.MULTILINE)
STAND_IN = re.compile(rf"^[^\n]*#{PRIVATE}:", re.MULTILINE)
# Also the commands that IPython accepts without `%`; with continuation lines.
MAGIC = re.compile(
    r"^([ \t]*)(?:(?:[%!?]|(?:cd|conda|ls|pip)\b|[\w.,* ]+=[ \t]*[%!])"
    r".*(?:(?<=\\)\n.*)*|.*\?[ \t]*$)",
    re.MULTILINE,
)
# Cells that are not Python; other cell magics have Python below them.
OTHER_CELL = re.compile(r"\s*%%(?!(?:capture|prun|time|timeit)\b)")


class Notebook:
    """A notebook file of nbformat 4, and its code cells as one Python module, `code`.

    Cells that are not Python stay as they are, with messages in `errors`.
    """

    def __init__(self, data: bytes):
        self.data, self.code, self.errors = data, "", []
        try:
            notebook = json.loads(data)
            language = notebook["metadata"].get("language_info", {}).get("name")
            cells = notebook["cells"] if language in (None, "python") else []
            sources = [c["source"] for c in cells if c["cell_type"] == "code"]
            self.cells = ["".join(source) for source in sources]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a notebook of nbformat 4: {error!r}") from error
        for number, cell in enumerate(self.cells, 1):
            self.code += f"{CELL}{number}\n{self._python(number, cell)}\n"

    def _python(self, number: int, cell: str) -> str:
        try:
            return as_python(cell)
        except SyntaxError as error:
            place = f"code cell {number}, line {error.lineno}"
            self.errors.append(f"{place}: not Python: {error.msg}")
            return _stand_in(cell)

    def with_code(self, code: str) -> bytes:
        """Returns the file with the cells of another module in place of `code`."""
        _, *cells = CELLS.split(code)
        data, sources = self.data, self._sources() if code != self.code else []
        # From the last cell to the first, so that the places before stay valid.
        for source, old, new in reversed([*zip(sources, self.cells, cells)]):
            new = STAND_IN.sub("", new.removesuffix("\n"))
            if new != old:
                start, end = self._span(source)
                data = data[:start] + self._encoded(source, new) + data[end:]
        return data

    def _sources(self) -> list[Any]:
        """Returns the nodes of the text of all code cells: JSON is nearly Python."""
        lengths = map(len, re.split(rb"(?<=\n)", self.data))
        self._starts = [-1, *accumulate(lengths)]
        root = ast.parse(b"(" + self.data + b"\n)", mode="eval").body
        cells = [_entries(cell) for cell in _entries(root)["cells"].elts]
        return [c["source"] for c in cells if c["cell_type"].value == "code"]

    def _span(self, node: Any) -> tuple[int, int]:
        """Returns where a node starts and ends in the file."""
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _encoded(self, source: Any, new: str) -> bytes:
        """Returns the JSON of a cell's new text, laid out as that of the old one."""
        start, end = self._span(source)
        is_ascii = self.data[start:end].isascii()
        if isinstance(source, ast.Constant):
            return json.dumps(new, ensure_ascii=is_ascii).encode()
        spans = [self._span(line) for line in source.elts]
        # Lines that stay keep their bytes: JSON has several ways to write a string.
        known = {json.loads(self.data[a:b]): self.data[a:b] for a, b in spans}
        lines = [
            known.get(line) or json.dumps(line, ensure_ascii=is_ascii).encode()
            for line in new.splitlines(keepends=True)
        ]
        head, tail = self.data[start : spans[0][0]], self.data[spans[-1][1] : end]
        return head + (b"," + (head[1:] or b" ")).join(lines) + tail


def _entries(node: ast.Dict) -> dict[str, Any]:
    return {k.value: v for k, v in zip(node.keys, node.values)}


def as_python(cell: str) -> str:
    """Returns the text of a cell with stand-ins for the lines in IPython's syntax."""
    if OTHER_CELL.match(cell):
        return _stand_in(cell)
    try:
        ast.parse(cell)
    except SyntaxError:
        # Only where Python fails: `% b` can also continue an expression.
        cell = MAGIC.sub(lambda match: _stand_in(match[0], match[1]), cell)
        ast.parse(cell)
    return cell


def _stand_in(text: str, indent: str = "") -> str:
    """Returns `pass` for each line, with the line in a comment."""
    lines = text.split("\n")
    return "\n".join(f"{indent}pass#{PRIVATE}:{line}" for line in lines)


def place(code: str, line: int) -> str:
    """Returns where a line of `Notebook.code` stands, as `code cell 3, line 2`."""
    lines = code.split("\n")[:line]
    start = max(k for k, text in enumerate(lines, 1) if text.startswith(CELL))
    return f"{lines[start - 1].partition(PRIVATE)[2]}, line {line - start}"
