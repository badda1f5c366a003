"""The rewrite of a file's bytes: Python files, and notebooks."""

import codecs
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from rnncells_migrate.changes import Note
from rnncells_migrate.notebooks import Notebook, place
from rnncells_migrate.rewrite import marks, rewrite

STDIN = Path("-")
FLAX_NN = re.compile(r"^\s*(import|from) flax(\.nn\b| import \(?nn\b)", re.MULTILINE)
OLDER = "`flax.nn`, which is older than `flax.linen`, is not supported: port it by hand"


@dataclass
class Document:
    """What a file becomes; with an error, it stays as it is."""

    path: Path
    before: bytes
    after: bytes
    error: str = ""
    # What is printed about it, the marks in the new file, and the rewrites by rule.
    messages: list[str] = field(default_factory=list)
    marks: list[Note] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def is_changed(self) -> bool:
        return self.after != self.before


def document(path: Path, data: bytes) -> Document:
    """Returns what a file becomes; its code is never run."""
    result = Document(path, data, data)
    try:
        _rewrite(result)
    except UnicodeError:
        result.error = "not UTF-8"
    except cst.ParserSyntaxError as error:
        result.error = f"not Python: {error.message}, line {error.raw_line}"
    except Exception as error:
        # One file must not stop the others.
        result.error = f"{type(error).__name__}: {error}"
    return result


def _rewrite(result: Document) -> None:
    path, data, notebook = result.path, result.before, None
    if path.suffix == ".ipynb" or (path == STDIN and data[:1] == b"{"):
        notebook = Notebook(data)
    code = notebook.code if notebook else data.decode("utf-8-sig")
    errors = notebook.errors if notebook else [OLDER] if FLAX_NN.search(code) else []
    result.messages += [f"{path}: {error}" for error in errors]
    new, notes, result.counts = rewrite(code)
    result.marks = marks(new)
    # The lines moved: a second run changes nothing, and has the new lines.
    notes = rewrite(new)[1] if notes and new != code else notes
    for line, rule, text in [*result.marks, *notes]:
        where = f" {place(new, line)}" if notebook else line
        result.messages.append(f"{path}:{where}: {rule}: {text}")
    if notebook:
        result.after = notebook.with_code(new)
    else:
        start = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        result.after = start + new.encode()
