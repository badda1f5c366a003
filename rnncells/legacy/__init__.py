"""Runs code for Flax <= 0.6.11: import `rnncells.legacy` instead of `flax.linen`.

The shim provides all names and modules of `flax.linen`. Its recurrent cells and layers
accept the arguments of Flax <= 0.6.11 and today's, so you can change a program step by
step.

Each old form raises a `DeprecationWarning` that says what to write instead, once for
each line of your code. Python shows such warnings only for `__main__`, pytest shows
all. To see those of imported modules, run `python -W default::DeprecationWarning`, or
add this line to your program:

    warnings.filterwarnings("default", ".*removed after Flax 0.6", DeprecationWarning)

`with strict():`, `set_strict()` or the environment variable `RNNCELLS_LEGACY_STRICT=1`
turn each warning into a `TypeError`. Parameter names and initial values equal those of
old and new Flax, so checkpoints load.

Version 2.0 of rnncells (`REMOVAL_VERSION`) will remove this module, and not before
2028-01-01 (`REMOVAL_DATE`). The command `rnncells-migrate` rewrites files. See also
docs/api/legacy.md: carries, imports, and what differs from Flax.
"""

import sys as _sys

# `import *` gives all public names of this module, so the shim's own names are private.
import flax.linen as _linen
from flax.linen import *

# Flax imports all its other modules.
from flax.linen import partitioning as partitioning

from rnncells.legacy import recurrent as recurrent
from rnncells.legacy._old_forms import REMOVAL_DATE as REMOVAL_DATE
from rnncells.legacy._old_forms import REMOVAL_VERSION as REMOVAL_VERSION
from rnncells.legacy._old_forms import set_strict as set_strict
from rnncells.legacy._old_forms import strict as strict
from rnncells.legacy.recurrent import RNN as RNN
from rnncells.legacy.recurrent import Bidirectional as Bidirectional
from rnncells.legacy.recurrent import ConvLSTM as ConvLSTM
from rnncells.legacy.recurrent import ConvLSTMCell as ConvLSTMCell
from rnncells.legacy.recurrent import GRUCell as GRUCell
from rnncells.legacy.recurrent import LSTMCell as LSTMCell
from rnncells.legacy.recurrent import MGUCell as MGUCell
from rnncells.legacy.recurrent import OptimizedLSTMCell as OptimizedLSTMCell
from rnncells.legacy.recurrent import RNNCellBase as RNNCellBase
from rnncells.legacy.recurrent import SimpleCell as SimpleCell

# The modules of `flax.linen`, importable as modules of the shim. They are Flax's own
# objects: copies would lack the private names.
for _name, _value in vars(_linen).items():
    _is_module = getattr(_value, "__name__", "") == f"flax.linen.{_name}"
    # The shim has its own `recurrent`.
    if _is_module and _name != "recurrent":
        _sys.modules[f"{__name__}.{_name}"] = _value
