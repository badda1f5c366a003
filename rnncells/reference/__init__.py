"""Closed forms of what the library computes otherwise: to be read, and to test with."""

from rnncells.reference.lstm import lstm_step as lstm_step
from rnncells.reference.lstm import lstm_step_vjp as lstm_step_vjp
