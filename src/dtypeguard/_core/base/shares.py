"""Parts of a whole as users write them, in Python and on the command line; without torch."""


def part(text: str) -> float:
    """`0.01`, or `1%`.

    Raises:
        ValueError: it is none.
    """
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{text} is neither a number nor a percentage, as 1%") from None
