"""The words of errors in configs and options."""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, Union

INSTALL = "in a clone, pip install -e '.[experiments]'"


# Usual names of fields and cells in other programs, with those here.
USUAL = {
    **dict.fromkeys(
        ("hidden", "hidden-size", "hidden-units", "units", "num-units", "width", "dim"),
        ("features", "blocks"),
    ),
    **dict.fromkeys(("num-layers", "n-layers", "depth"), ("layers",)),
    **dict.fromkeys(("lr", "learning-rate"), ("rate",)),
    **dict.fromkeys(("batch-size", "bs"), ("batch",)),
    **dict.fromkeys(
        ("steps", "num-steps", "iterations", "epochs", "num-epochs"),
        ("updates", "max-sequences"),
    ),
    **dict.fromkeys(("grad-clip", "clip-norm", "max-norm"), ("clip",)),
    **dict.fromkeys(("output", "output-dir", "out-dir", "folder"), ("out",)),
    **dict.fromkeys(("random-seed", "rng"), ("seed",)),
    **dict.fromkeys(("rnn", "rnncell", "elman", "vanilla"), ("simplecell",)),
    "dropout-rate": ("dropout",),
    "kernel-size": ("kernel",),
}


def nearest(name: str, known: Collection[str]) -> str:
    """Returns the end of an error message, which suggests known names.

    These are the names that stand for `name` in other programs; else the names that
    contain the most words of `name`, or words that start with them, ignoring case; else
    the name with the nearest spelling; else all names.

    >>> nearest("task 6A", ["reber-1-1", "temporal-order-6a", "temporal-order-6b"])
    '; did you mean `temporal-order-6a`?'
    >>> nearest("rat", ["--seed", "--learning.rate", "--baseline.rate"])
    '; did you mean `--learning.rate` or `--baseline.rate`?'
    >>> nearest("--model.hidden", ["--model.features", "--task.hide"])
    '; did you mean `--model.features`?'
    """
    if not known:
        return "."
    words = [re.escape(word) for word in name.lstrip("-").split()]
    patterns = [re.compile(f"(?<![a-z0-9]){word}", re.IGNORECASE) for word in words]
    counts = {x: sum(bool(p.search(x)) for p in patterns) for x in known}
    most = max(counts.values())
    found = _usual(name, known)
    found = found or [x for x, count in counts.items() if count == most > 0]
    found = found or difflib.get_close_matches(name, known, n=1)
    if not found:
        return f"; expected one of {_listed(known, ', ')}."
    return f"; did you mean {_listed(found, ' or ')}?"


def _usual(name: str, known: Collection[str]) -> list[str]:
    """Returns the known names for what other programs call `name`."""
    section, last = _parts(name)
    here = *USUAL.get(last, ()), f"{last}cell"
    found = {x: _parts(x) for x in known if _parts(x)[1] in here}
    of_section = [x for x, parts in found.items() if parts[0] == section]
    return of_section or list(found)


def _parts(name: str) -> tuple[str, str]:
    """Returns the section and the name of an option or a key, in one spelling."""
    section, _, last = name.lstrip("-").lower().replace("_", "-").rpartition(".")
    return section, last


def _listed(names: Collection[str], last: str) -> str:
    """Returns quoted names, separated by commas and, before the last, by `last`."""
    *others, end = (f"`{x}`" for x in names)
    return last.join([", ".join(others)] * bool(others) + [end])


def describe(kind: Any, *, plural: bool = False) -> str:
    """Describes the annotation of a field in words.

    >>> from experiments.settings.rules import Share
    >>> describe(tuple[Share, ...] | None)
    'a list of numbers in [0, 1)'
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return "a section"
    if origin is Literal:
        return f"one of {list(arguments)}"
    if origin is Annotated:
        return describe(arguments[0], plural=plural) + _interval(arguments[1].metadata)
    if origin in (Union, types.UnionType):
        return describe(arguments[0], plural=plural)
    if origin is tuple:
        count = "" if Ellipsis in arguments else f"{len(arguments)} "
        items = describe(arguments[0], plural=True)
        return f"{'lists' if plural else 'a list'} of {count}{items}"
    return _WORDS[kind][plural]


_WORDS = {
    bool: ("true or false", "true or false"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    Path: ("a path", "paths"),
}


def _interval(limits: list[Any]) -> str:
    """Describes the range of a `pydantic.Field` with `ge` or `gt`, and `le` or `lt`."""
    if not limits:
        return ""
    found = {name: _bound(getattr(x, name)) for x in limits for name in x.__slots__}
    low = f"[{found['ge']}" if "ge" in found else f"({found['gt']}"
    high = f"{found['le']}]" if "le" in found else f"{found['lt']})"
    return f" in {low}, {high}"


def _bound(bound: float) -> str:
    power = int(bound).bit_length() - 1
    return f"2**{power}" if bound == 2**power > 2**16 else f"{bound:g}"


def explain(
    kind: type, values: dict[str, Any], errors: list[Any], where: str = ""
) -> str:
    """Returns the text of one of the errors in the values of a class.

    Args:
      kind: the class.
      values: the values that it was made of, by field.
      errors: `pydantic.ValidationError.errors()`.
      where: the file and the section.
    """
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    # Unknown keys come first, because a misspelled key is also missing.
    unknown = "unexpected_keyword_argument"
    error = min(errors, key=lambda error: error["type"] != unknown)
    if not error["loc"] and error["type"] != "value_error":
        return f"{where}: {error['msg']}" if where else error["msg"]
    problem, (key, *rest) = error["type"], error["loc"] or [None]
    if isinstance(values.get(key), dict) and (rest or problem == "value_error"):
        section = fields[key]
        if not dataclasses.is_dataclass(section):
            # A union of tasks. The error names the one that pydantic has chosen.
            name, *rest = rest
            tasks = typing.get_args(typing.get_args(section)[0])
            section = next(task for task in tasks if task.name == name)
        error = error | {"loc": rest}
        return explain(section, values[key], [error], f"{where} [{key}]")
    if problem == "value_error":
        text = str(error["ctx"]["error"])
    elif key not in fields:
        text = f"unknown key `{key}`{nearest(key, fields)}"
    elif key not in values:
        is_section = describe(fields[key]) == "a section"
        text = f"missing {'section' if is_section else 'key'} `{key}`."
    else:
        text = f"`{key}` must be {describe(fields[key])}, got {values[key]!r}."
    return f"{where}: {text}" if where else text
