"""Deprecated: `rnncells.testing`."""

import warnings
from typing import Any

from rnncells import testing


def __getattr__(name: str) -> Any:
    if name.startswith("_") or not hasattr(testing, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "`rnncells.conformance` is deprecated: it is now `rnncells.testing`.",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(testing, name)
