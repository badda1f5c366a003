"""What layers share: their bases, checks of calls, padding, states and decoding."""
