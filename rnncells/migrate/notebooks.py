"""Jupyter notebooks: the Python code of the cells as one module, and back.

Names carry over from cell to cell, so the code cells of a notebook are rewritten as one
module. Lines in IPython's own syntax (`%magic`, `!command`, `name?`, `%%bash` cells)
become `pass` in that module, with the original line in a comment. In the file, only the
text of cells that change is replaced.
"""

import ast
import json
import re
from functools import cached_property

from rnncells.migrate.json_places import JSONValue, read_json

# A character for private use, which no program contains.
PRIVATE = "\ue000"
# The line above the code of each cell.
CELL = f"pass#{PRIVATE}code cell "
CELLS = re.compile(rf"^{CELL}\d+\n", re.MULTILINE)
STAND_IN = re.compile(rf"^[^\n]*#{PRIVATE}:", re.MULTILINE)
# Also the commands that IPython accepts without `%`.
LINE_MAGIC = re.compile(r"\s*[%!?]|(?:cd|conda|ls|pip)\b|\s*[\w.,* ]+=\s*[%!]|.*\?\s*$")
CELL_MAGIC = re.compile(r"\s*%%(\w+)")
# How errors name the types of JSON values.
TYPES = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}
# Cell magics with Python below them.
OF_PYTHON = {"capture", "prun", "time", "timeit"}


class Notebook:
    """A notebook file of nbformat 4.

    Args:
      data: the bytes of the file.

    Raises:
      ValueError: the file is not a notebook, or its nbformat is older than 4.
    """

    def __init__(self, data: bytes):
        try:
            self.text = data.decode()
            notebook = read_json(self.text)
        except ValueError as error:
            raise ValueError(f"not a notebook: not JSON: {error}") from error
        version = _entry(notebook, "nbformat", int).value
        if version < 4:
            raise ValueError(
                f"nbformat {version} is too old: convert the notebook first, by "
                "`jupyter nbconvert --to notebook --inplace FILE`"
            )
        metadata = _entry(notebook, "metadata", dict)
        is_python = _language(metadata) in (None, "python")
        self._sources = _sources(notebook) if is_python else []

    @cached_property
    def cells(self) -> list[str]:
        """The text of each code cell; empty for languages other than Python."""
        return [_joined(source) for source in self._sources]

    @cached_property
    def _python(self) -> list[str | SyntaxError]:
        """The Python code of each cell, or its error."""
        return [_python_or_error(cell) for cell in self.cells]

    @property
    def errors(self) -> list[str]:
        """Messages about cells that are not Python: they cannot run, and stay."""
        return [
            f"code cell {number} is not Python, line {error.lineno}: {error.msg}"
            for number, error in enumerate(self._python, 1)
            if isinstance(error, SyntaxError)
        ]

    @cached_property
    def code(self) -> bytes:
        """The code cells as one Python module."""
        module = ""
        for number, python in enumerate(self._python, 1):
            if isinstance(python, SyntaxError):
                lines = self.cells[number - 1].split("\n")
                python = "\n".join(_stand_in("", line) for line in lines)
            module += f"{CELL}{number}\n{python}\n"
        return module.encode()

    def with_code(self, code: bytes) -> bytes:
        """Returns the file with the cells of another module in place of `code`."""
        before, *cells = CELLS.split(code.decode())
        if before or len(cells) != len(self.cells):
            raise ValueError("the rewritten code does not have the notebook's cells")
        parts, at = [], 0
        for source, old, new in zip(self._sources, self.cells, cells, strict=True):
            new = STAND_IN.sub("", new.removesuffix("\n"))
            if new != old:
                parts += [self.text[at : source.start], self._encoded(source, new)]
                at = source.end
        return "".join([*parts, self.text[at:]]).encode()

    def _encoded(self, source: JSONValue, new: str) -> str:
        """Returns the JSON of a cell's new text, laid out as that of the old one."""
        text = self.text
        is_ascii = text[source.start : source.end].isascii()
        if not isinstance(source.value, list):
            return json.dumps(new, ensure_ascii=is_ascii)
        # Lines that stay keep their bytes: JSON has several ways to write a string.
        known = {line.value: text[line.start : line.end] for line in source.value}
        lines = new.splitlines(keepends=True)
        encoded = [known.get(s) or json.dumps(s, ensure_ascii=is_ascii) for s in lines]
        first, last = source.value[0], source.value[-1]
        head, tail = text[source.start : first.start], text[last.end : source.end]
        between = f",{head[1:] or ' '}"
        if first is not last:
            between = text[first.end : source.value[1].start]
        return head + between.join(encoded) + tail


def is_notebook(data: bytes) -> bool:
    """Returns whether the contents of a file are a notebook, and no Python code."""
    try:
        content = json.loads(data)
    except ValueError:
        return False
    return isinstance(content, dict) and "nbformat" in content


def _entry(
    holder: JSONValue, name: str, *types: type, place: str = "the notebook"
) -> JSONValue:
    """Returns an entry of a JSON object.

    Args:
      holder: the object.
      name: of the entry.
      *types: those that its value may have.
      place: where the object stands, for errors.

    Raises:
      ValueError: the object is none, or has no such entry of these types.
    """
    if not isinstance(holder.value, dict):
        raise ValueError(f"not a notebook: {place} must be {TYPES[dict]}")
    found = holder.value.get(name)
    if found is None:
        raise ValueError(f"not a notebook: {place} has no `{name}`")
    # In Python, a bool is an int.
    if type(found.value) not in types:
        expected = " or ".join(TYPES[one] for one in types)
        given = TYPES.get(type(found.value), json.dumps(found.value))
        raise ValueError(
            f"not a notebook: `{name}` of {place} must be {expected}, got {given}"
        )
    return found


def _sources(notebook: JSONValue) -> list[JSONValue]:
    """Returns the text of each code cell."""
    found = []
    for number, cell in enumerate(_entry(notebook, "cells", list).value, 1):
        place = f"cell {number}"
        if _entry(cell, "cell_type", str, place=place).value != "code":
            continue
        source = _entry(cell, "source", str, list, place=place)
        parts = source.value if isinstance(source.value, list) else [source]
        if not all(isinstance(part.value, str) for part in parts):
            raise ValueError(
                f"not a notebook: `source` of {place} must contain only strings"
            )
        found.append(source)
    return found


def _language(metadata: JSONValue) -> str | None:
    """Returns the language of a notebook's kernel in lower case, if it is known."""
    for section, name in (("language_info", "name"), ("kernelspec", "language")):
        if section in metadata.value:
            of_section = _entry(metadata, section, dict, place="`metadata`")
            if name in of_section.value:
                found = _entry(of_section, name, str, place=f"`{section}`")
                return found.value.lower()
    return None


def _joined(source: JSONValue) -> str:
    """Returns the text of a cell, which is a string or a list of strings."""
    if isinstance(source.value, list):
        return "".join(part.value for part in source.value)
    return source.value


def _python_or_error(cell: str) -> str | SyntaxError:
    try:
        return as_python(cell)
    except SyntaxError as error:
        return error


def as_python(cell: str) -> str:
    """Returns the text of a cell with stand-ins for the lines in IPython's syntax.

    Raises:
      SyntaxError: a line is neither Python nor IPython's syntax.
    """
    lines = cell.split("\n")
    magic = CELL_MAGIC.match(cell)
    if magic:
        name_at = cell.count("\n", 0, magic.start(1))
        stop = name_at + 1 if magic[1] in OF_PYTHON else len(lines)
        lines[:stop] = [_stand_in("", line) for line in lines[:stop]]
    while True:
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            # Only where Python fails: `% b` can also continue an expression.
            at = (error.lineno or 0) - 1
            while at > 0 and lines[at - 1].endswith("\\"):
                at -= 1
            # A line that was replaced can fail again, as a body without indent does.
            if not (0 <= at < len(lines) and LINE_MAGIC.match(lines[at])) or (
                PRIVATE in lines[at]
            ):
                raise
            _replace_magic(lines, at)
        else:
            return "\n".join(lines)


def _replace_magic(lines: list[str], at: int) -> None:
    """Replaces a line of IPython's syntax and its continuation lines."""
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    is_joined = True
    while is_joined and at < len(lines):
        is_joined = lines[at].endswith("\\")
        lines[at] = _stand_in(indent, lines[at])
        at += 1


def _stand_in(indent: str, line: str) -> str:
    return f"{indent}pass#{PRIVATE}:{line}"


def place(code: bytes, line: int) -> str:
    """Returns where a line of `Notebook.code` stands, as `code cell 3, line 2`."""
    lines = code.decode().split("\n")[:line]
    start = max(k for k, text in enumerate(lines, 1) if text.startswith(CELL))
    return f"{lines[start - 1].partition(PRIVATE)[2]}, line {line - start}"
