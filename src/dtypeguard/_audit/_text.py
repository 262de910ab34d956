"""Numbers and code in messages."""


def human(size: float) -> str:
    """A number of bytes: `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def quoted(code: str) -> str:
    return f"`{code}`"
