"""Code for Flax <= 0.6.11 as it is: `import rnncells.legacy as nn` instead of Flax's.

    import flax.linen as nn        ->   import rnncells.legacy as nn
    from flax.linen import RNN     ->   from rnncells.legacy import RNN
    import flax.linen.linear       ->   import rnncells.legacy.linear

All names and modules of `flax.linen` are here. The recurrent names take both what they
took up to Flax 0.6.11 and what they take today, so that a program can be moved step by
step:

>>> import warnings; warnings.simplefilter("ignore", DeprecationWarning)
>>> import jax, jax.numpy as jnp, rnncells.legacy as nn
>>> lstm, x = nn.LSTMCell(), jnp.ones((2, 3))
>>> carry = nn.LSTMCell.initialize_carry(jax.random.key(0), (2,), 4)
>>> (carry, y), params = lstm.init_with_output(jax.random.key(1), carry, x)
>>> y.shape
(2, 4)

Each old form is answered by a `DeprecationWarning`, once for each place in the user's
code, that says what to write instead. Python shows those of `__main__` alone, and
pytest all: to see them in modules that a program imports, run it by
`python -W default::DeprecationWarning`, or have it say

    warnings.filterwarnings("default", ".*is of Flax <= 0.6", DeprecationWarning)

`with strict():`, `set_strict()` or the environment variable `RNNCELLS_LEGACY_STRICT=1`
make each a `TypeError`, which no filter hides. Names of parameters and initial values
are those of Flax, old and new, so checkpoints load.

A cell without `features` takes each carry that it took: a list, or one that broadcasts.
With `features` it is as strict as those of `rnncells`.

What a shim cannot see: a positional `gate_fn` as the first argument of a cell raises
`TypeError`.

This module goes with version 2.0 of rnncells (`REMOVAL_VERSION`), and not before
2028-01-01 (`REMOVAL_DATE`). The command `rnncells migrate` rewrites files.
"""

# All that is public here is what `import *` gives, so files of the shim are private.
from flax.linen import *

from rnncells.legacy import recurrent as recurrent
from rnncells.legacy._modules import partitioning as partitioning
from rnncells.legacy._notice import REMOVAL_DATE as REMOVAL_DATE
from rnncells.legacy._notice import REMOVAL_VERSION as REMOVAL_VERSION
from rnncells.legacy._notice import set_strict as set_strict
from rnncells.legacy._notice import strict as strict
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
