"""Settings of the documentation site; docs/README.md has the command that builds it."""

import dataclasses
import inspect
import pydoc
import re
import sys
import zlib
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

import flax.linen as nn
from flax.core import FrozenDict

import rnncells
import rnncells.public

project = "rnncells"
author = "the authors of rnncells"
version = release = rnncells.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "README.md"]
html_theme = "furo"
html_title = f"rnncells {release}"
html_show_sphinx = False
html_show_copyright = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# Notebooks run when the site is built, and an error in one ends the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120

# `name` in a docstring is a reference if there is such a name, and code if not.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_use_rtype = False
# What flax.linen adds to each class of modules.
autodoc_default_options = {
    "members": True,
    "exclude-members": "parent, name, scope, setup, deterministic, streams",
}


MODULES = [
    value
    for value in vars(rnncells.public).values()
    if inspect.isclass(value) and issubclass(value, nn.Module)
]
FIELDS = {
    field.name
    for module in MODULES
    for field in dataclasses.fields(module)
    if field.default is not dataclasses.MISSING
}


def inventory(name: str) -> str:
    """Writes the addresses in docs/inventory/NAME.txt in the format of Sphinx.

    The site then links to other projects without a network.

    Returns:
      The path of the file.
    """
    text = (DOCS / "inventory" / f"{name}.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    header = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n"
    header += "# The remainder of this file is compressed using zlib.\n"
    path = DOCS / "_build" / f"{name}.inv"
    path.parent.mkdir(exist_ok=True)
    body = "".join(f"{line} -\n" for line in lines)
    path.write_bytes(header.encode() + zlib.compress(body.encode()))
    return str(path)


intersphinx_mapping = {
    "jax": ("https://docs.jax.dev/en/latest/", inventory("jax")),
    "flax": ("https://flax-linen.readthedocs.io/en/latest/", inventory("flax")),
    "flax_nnx": ("https://flax.readthedocs.io/en/latest/", inventory("flax_nnx")),
}


def shown(value: object) -> str:
    """Returns a default value as a reader would write it."""
    if inspect.isfunction(value) or callable(value) and hasattr(value, "__name__"):
        # Initializers are functions inside functions: `orthogonal.<locals>.init`.
        return value.__qualname__.partition(".<locals>")[0]
    return repr(dict(value) if isinstance(value, FrozenDict) else value)


def signature_of_module(app, what, name, obj, options, signature, annotation):
    """Shows the fields of a flax.linen module as arguments of its constructor."""
    is_module = inspect.isclass(obj) and issubclass(obj, nn.Module)
    if not is_module or not dataclasses.is_dataclass(obj):
        return None
    arguments, star = [], False
    fields = [f for f in dataclasses.fields(obj) if f.init]
    for field in sorted(fields, key=lambda field: field.kw_only):
        if field.name in ("parent", "name"):
            continue
        if field.kw_only and not star:
            arguments.append("*")
            star = True
        is_required = field.default is dataclasses.MISSING
        default = "" if is_required else f"={shown(field.default)}"
        arguments.append(field.name + default)
    return f"({', '.join(arguments)})", None


SECTION = re.compile(r"^Attributes(?:, in addition to those of ?(.*)|:)$")


FIELDS_OF = re.compile(
    r"^Attributes(?:, in addition to those of\s+`([\w.]+)`)?:\n((?:  .*\n?)+)", re.M
)


def inherited(name, own):
    """Returns the entries of fields of a base class without a page, as lines."""
    base, text = FIELDS_OF.search(inspect.getdoc(pydoc.locate(name))).groups()
    lines = inherited(base, own + text) if base else []
    for entry in re.split(r"\n(?=  \w)", text.rstrip()):
        field = entry.partition(":")[0].strip()
        if not re.search(rf"^\s+{field}: ", own, re.M):
            lines += entry.splitlines()
    return lines


def sections(app, what, name, obj, options, lines):
    """Shows the attributes of a class as arguments of its constructor.

    A section may begin with "Attributes, in addition to those of ...:".
    """
    out, rest = [], list(lines)
    while rest:
        line = rest.pop(0)
        found = SECTION.match(line)
        if not found:
            out.append(line)
            continue
        others = found[1]
        while others is not None and not others.endswith(":"):
            others = f"{others} {rest.pop(0).strip()}".strip()
        base = (others or "").strip("`:")
        # Bases with a page are public names, `rnncells.X` or `X`.
        if others and base.count(".") < 2:
            out += [f"It also has the attributes of {others[:-1]}.", ""]
        out.append("Args:" if inspect.isclass(obj) else "Attributes:")
        if base.count(".") > 1:
            out += inherited(base, "\n".join(lines))
    lines[:] = out


def skip_fields(app, what, name, obj, skip, options):
    """Leaves out the fields of modules, which the signature and the text have."""
    return True if name in FIELDS else None


def setup(app):
    app.connect("autodoc-process-signature", signature_of_module)
    app.connect("autodoc-skip-member", skip_fields)
    # Before napoleon, which reads the sections.
    app.connect("autodoc-process-docstring", sections, priority=400)
