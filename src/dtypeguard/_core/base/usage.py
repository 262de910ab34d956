"""What a command of `python -m dtypeguard` raises."""


class Usage(Exception):
    """What was asked for cannot be done."""
