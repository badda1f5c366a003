"""The rewrite of a file's bytes: Python files, and notebooks."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from rnncells_migrate.changes import Note
from rnncells_migrate.notebooks import Notebook, is_notebook, place
from rnncells_migrate.rewrite import marks, rewrite

BOM = "\ufeff"
STDIN = Path("-")
FLAX_NN = re.compile(r"^\s*(import|from) flax(\.nn\b| import \(?nn\b)", re.MULTILINE)
OLDER = "`flax.nn`, which is older than `flax.linen`, is not supported: port it by hand"


@dataclass
class Document:
    """What a file becomes.

    Attributes:
      path: the file; `-` is standard input.
      before: its bytes.
      after: its new bytes.
      error: why the file stays as it is, or "".
      messages: what is printed about its lines.
      marks: the marks in the new file.
      counts: the number of rewritten places of each rule.
    """

    path: Path
    before: bytes
    after: bytes
    error: str = ""
    messages: list[str] = field(default_factory=list)
    marks: list[Note] = field(default_factory=list)
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_changed(self) -> bool:
        return self.after != self.before


def document(path: Path, data: bytes) -> Document:
    """Returns what a file becomes; its code is never run."""
    result = Document(path, data, data)
    try:
        if path.suffix == ".ipynb" or (path == STDIN and is_notebook(data)):
            notebook = Notebook(data)
            result.messages += [f"{path}: {error}" for error in notebook.errors]
            code = _rewritten(
                result, notebook.code, lambda code, line: f": {place(code, line)}"
            )
            result.after = notebook.with_code(code)
        else:
            text = data.decode()
            start = BOM if text.startswith(BOM) else ""
            if FLAX_NN.search(text):
                result.messages.append(f"{path}: {OLDER}")
            code = _rewritten(
                result, text.removeprefix(BOM), lambda code, line: f":{line}"
            )
            result.after = (start + code).encode()
    except UnicodeError:
        result.error = "not UTF-8"
    except cst.ParserSyntaxError as error:
        result.error = f"not Python: {error.message}, line {error.raw_line}"
    except Exception as error:
        # One file must not stop the others.
        result.error = f"{type(error).__name__}: {error}"
    return result


def _rewritten(result: Document, code: str, locate: Callable[[str, int], str]) -> str:
    """Returns the new code, and adds what is printed about it to the result."""
    new = rewrite(code)
    result.counts, result.marks = new.counts, marks(new.code)
    # The lines moved: a second run changes nothing, and has the new lines.
    notes = new.notes if new.code == code else rewrite(new.code).notes
    for note in [*result.marks, *notes]:
        where = locate(new.code, note.line)
        result.messages.append(f"{result.path}{where}: {note.rule}: {note.text}")
    return new.code
