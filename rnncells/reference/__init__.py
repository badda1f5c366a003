"""Closed forms of steps and their derivatives, for reading and for tests."""

from rnncells.reference.lstm import lstm_step as lstm_step
from rnncells.reference.lstm import lstm_step_vjp as lstm_step_vjp
