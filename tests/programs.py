"""Programs for Flax <= 0.6.11, in `old_programs`; each has a function `run`."""

import re
import types
from pathlib import Path
from typing import Any

PROGRAMS = {
    path.stem: path.read_text()
    for path in sorted((Path(__file__).parent / "old_programs").glob("*.py"))
}


def run(name: str, source: str) -> Any:
    """Returns what `run()` of a program gives."""
    module = types.ModuleType(name)
    module.__file__ = f"{name}.py"
    exec(compile(source, module.__file__, "exec"), vars(module))
    return module.run()


def with_imports_of(module: str, source: str) -> str:
    """Returns a program that uses another module in place of `flax.linen`."""
    source = re.sub(r"\bfrom flax import linen\b", "import flax.linen", source)
    source = re.sub(r"\bimport flax\.linen$", "import flax.linen as linen", source)
    source = re.sub(r"^import flax$", f"import {module}", source, flags=re.MULTILINE)
    return re.sub(r"\bflax\.linen(\.recurrent)?\b", module, source)
