"""DG8: what is baked into an exported program."""
