"""Deprecated: `rnncells.testing`."""

import warnings

from rnncells.testing import CellReport as CellReport
from rnncells.testing import Finding as Finding
from rnncells.testing import check_cell as check_cell

warnings.warn(
    "`rnncells.conformance` is deprecated: it is now `rnncells.testing`.",
    DeprecationWarning,
    stacklevel=2,
)
