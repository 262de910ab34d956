"""Where users come in: `enforce`, `check`, `guard`."""
