"""Options that take one value or several: `skip_args="mask"` means `skip_args=["mask"]`."""

from collections.abc import Iterable
from typing import Any


def several(option: str, value: Any, kinds: Any, what: str) -> tuple[Any, ...]:
    """The values of an option, each once, in the order in which they are written.

    Args:
        option: its name.
        value: one value, or an iterable of values.
        kinds: the class of a value, or a union of classes.
        what: the values that the option takes, for the message.

    Raises:
        TypeError: for a value of another class.
    """
    single = isinstance(value, kinds | str | bytes) or not isinstance(value, Iterable)
    values = (value,) if single else tuple(value)
    for one in values:
        if not isinstance(one, kinds):
            name = type(one).__name__
            plain = type(one).__module__ in ("builtins", "torch")  # the text of a model would be long
            raise TypeError(f"{option} takes {what}, not {f'{one!r} ({name})' if plain else f'a {name}'}")
    return tuple(dict.fromkeys(values))


def argument_names(option: str, value: Any) -> frozenset[str]:
    """The names of arguments that an option takes."""
    return frozenset(several(option, value, str, "the name of an argument such as 'mask', or several names"))
