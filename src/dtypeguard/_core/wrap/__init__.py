"""The same made fast: generated checks, and the way of a call that they did not pass."""
