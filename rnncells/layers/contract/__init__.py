"""Parts that layers share: bases, checks of calls, padding, states, decoding."""
