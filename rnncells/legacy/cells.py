"""Cells that take old forms beside today's."""

from functools import wraps

import flax.linen as nn

from rnncells.cells import conv, gru, lstm
from rnncells.legacy.carry import InitializeCarry
from rnncells.legacy.notice import is_called_by_library, notice


class RNNCellBase(nn.RNNCellBase):
    """Base of users' cells, with a static `initialize_carry` or today's.

    A cell that does not say how many axes of its input are features has one.
    """

    @property
    def num_feature_axes(self) -> int:
        return 1


class OldCell:
    """What the cells here have beside those that they are made of."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        init = cls.__init__

        @wraps(init)
        def noticed(self, *args, **kwargs):
            init(self, *args, **kwargs)
            if self.features is None and not is_called_by_library():
                notice(
                    f"`{cls.__name__}()` without `features` is of Flax <= 0.6.11: "
                    f"write {cls.__name__}(features=...), the width of the carry."
                )

        cls.__init__ = noticed


class LSTMCell(OldCell, lstm.LSTMCell, RNNCellBase):
    __doc__ = lstm.LSTMCell.__doc__

    features: int | None = None

    initialize_carry = InitializeCarry(parts=2)


class OptimizedLSTMCell(OldCell, lstm.OptimizedLSTMCell, RNNCellBase):
    __doc__ = lstm.OptimizedLSTMCell.__doc__

    features: int | None = None

    initialize_carry = InitializeCarry(parts=2)


class GRUCell(OldCell, gru.GRUCell, RNNCellBase):
    __doc__ = gru.GRUCell.__doc__

    features: int | None = None

    initialize_carry = InitializeCarry(parts=1)


class ConvLSTMCell(conv.ConvLSTMCell, RNNCellBase):
    __doc__ = conv.ConvLSTMCell.__doc__

    initialize_carry = InitializeCarry(parts=2)


class ConvLSTM(ConvLSTMCell):
    """`ConvLSTMCell` under its name of Flax <= 0.6.3, which is in old checkpoints."""
