"""The tables of commands in `[tool.dtypeguard]`: each option of a command is a key of its table.

    [tool.dtypeguard.audit]
    fail-on = "error"
    html = "report.html"  # a path is relative to the folder of the file
    values = true

The options are those that the parser of the command line has, so there is no other list of them. A value goes through
the option's own type and choices, and becomes its default: the command line counts before the file, and `--no-NAME`
takes back what the file says of NAME. What is a key of `[tool.dtypeguard]` itself is none of a command.

No torch here: every command reads this first.
"""

import argparse
import functools
import os
import re
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._core.base import pyproject
from .._core.base.shares import part

PATH = "PATH"  # the metavar of what is a path


def share(text: str) -> float:
    """A part of a whole: `0.01`, or `1%`."""
    try:
        return part(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_NUMBERS: dict[Any, str] = {float: "a number", int: "a whole number", share: "a number, or a percentage as `1%`"}


class _Told(list[Any]):
    """A list of the file's, in the place of which `action="extend"` puts that of the command line."""

    def __copy__(self) -> list[Any]:
        return []


def commands_of(parser: ArgumentParser) -> Mapping[str, ArgumentParser]:
    """The parsers of the commands, by their names."""
    (found,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return found.choices


def keys(parser: ArgumentParser, every: bool = False) -> dict[str, Action]:
    """The options of a command by their keys in pyproject.toml: `--fail-on` is `fail-on`, `--no-casts` is `casts`.

    Args:
        parser: of the command.
        every: those too that stand in [tool.dtypeguard], for all commands.
    """
    found = {}
    for action in parser._actions:
        name = next((name[2:] for name in action.option_strings if name.startswith("--")), "")
        name = name.removeprefix("no-") if _is_off(action) else name
        if name and (every or name not in pyproject.KEYS) and argparse.SUPPRESS not in (action.help, action.default):
            found[name] = action
    return found


def legal(action: Action) -> str:
    """What a key takes, in words."""
    if action.nargs == 0:
        return "true or false"
    if action.choices is not None:
        return f"one of {', '.join(map(repr, action.choices))}"
    if isinstance(action.nargs, int):
        return f"a list of {action.nargs} strings: {', '.join(action.metavar or ())}"
    if _takes_list(action):
        return "a list of strings"
    if action.type is None:
        return "a path" if action.metavar == PATH else "a string"
    return _NUMBERS.get(action.type, f"what {action.option_strings[-1]} takes")


def take_back(parser: ArgumentParser) -> None:
    """Add to the options of a command, for each that pyproject.toml may set, one that takes it back."""
    parser.set_defaults(told={})
    for name, action in keys(parser).items():
        option = f"--{name}" if _is_off(action) else f"--no-{name}"
        parser.add_argument(
            option, dest=action.dest, action="store_const", const=action.default, default=action.default,
            help=argparse.SUPPRESS,
        )  # fmt: skip


def load(parser: ArgumentParser, folder: Path | None = None) -> None:
    """Check all of `[tool.dtypeguard]`, and make what the tables of commands say the defaults of their options.

    Raises:
        ValueError: for what is wrong, with its file and line.
    """
    parsers = commands_of(parser)
    file, table = pyproject.find(folder, {name: keys(parsers[name]) for name in pyproject.COMMANDS})
    if file is not None:
        for name in table.keys() & parsers.keys():
            _load(file, name, table[name], parsers[name])


def _load(file: Path, command: str, table: Mapping[str, Any], parser: ArgumentParser) -> None:
    options, told = keys(parser), {}
    groups = {action: group for group in parser._mutually_exclusive_groups for action in group._group_actions}
    first: dict[Any, str] = {}  # of each group the key that is set
    for key, value in table.items():
        action = options.get(key)
        if action is None:
            meant = f"; it is one of {pyproject.TABLE}"
            if key not in pyproject.KEYS:
                meant = f"{pyproject.near(key, options)}: use {', '.join(options)}"
            raise pyproject.wrong(file, (command, key), f"has no key {key!r}{meant}")
        try:
            read = _option_text(action, value, file.parent)
        except (ValueError, argparse.ArgumentTypeError) as error:
            near = pyproject.near(value, action.choices or ())
            said = (
                f"{key}={pyproject.literal(value)} is not {legal(action)}"
                if type(error) is ValueError
                else f"{key}: {error}"
            )
            raise pyproject.wrong(file, (command, key), f"{said}{near}") from None
        if read == action.default:  # a flag that is false
            continue
        group = groups.get(action)
        if group is not None:
            group.required = False
            if key != first.setdefault(group, key):
                raise pyproject.wrong(file, (command, key), f"sets {first[group]} and {key}, which exclude each other")
        action.required = False
        told[action.dest] = action.default
        parser.set_defaults(**{action.dest: _Told(read) if isinstance(read, list) else read})
    parser.set_defaults(told=told)


def settle(options: Namespace) -> None:
    """Drop what pyproject.toml says of an option, if the command line has one that excludes it."""
    for group in options.parser._mutually_exclusive_groups:
        given = {action.dest for action in group._group_actions if getattr(options, action.dest) is not action.default}
        for action in group._group_actions if given else ():
            if action.dest in options.told and action.dest not in given:
                setattr(options, action.dest, options.told[action.dest])


def said_of(options: Namespace, text: str) -> str:
    """Which of the options that a text names, or whose value it names, stand in pyproject.toml, to add to the text."""
    told = {key: one for key, one in keys(options.parser).items() if _is_told(options, one.dest)}
    table = f"[tool.dtypeguard.{options.parser.prog.rpartition(' ')[2]}]"
    named = [key for key, one in told.items() if f"--{key} " in f"{text} " or _names(text, getattr(options, one.dest))]
    return f"; {pyproject.NAME} sets {', '.join(named)} in {table}" if named else ""


def _is_told(options: Namespace, dest: str) -> bool:
    """Whether an option has the value that pyproject.toml gives it; a path may be absolute by now."""
    value, told = getattr(options, dest), options.parser.get_default(dest)
    same = value == told or (isinstance(told, str) and value == os.path.abspath(told))
    return dest in options.told and same


def _names(text: str, value: Any) -> bool:
    """Whether a text has a value in it: a path, a word, or the module of `module:function`."""
    words = value if isinstance(value, list) else [value]
    parts = (word.partition(":")[0] for word in words if isinstance(word, str))
    return any(re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) for part in parts if part)


_CALLS = "audit|compare|diff|dryrun|keep|manifest"


def typed(options: Namespace, text: str) -> str:
    """What a function says of an argument, as the command has it: `dtype='int9' is no dtype` is of `--dtype int9`.

    The function's name at its beginning stands before the text already, as the command's. What a function of the
    user's makes is not what was typed. `keep(bits=6)` is `--bits 6`, `keep(error=0.1)` is
    `--keep 0.1`, `to_recipe('torchao')` is `--recipe torchao`, and `pass values=True` is `pass --values`. What stands
    behind `[tool.dtypeguard]` is of the file.
    """
    text = re.sub(rf"^(?:{options.parser.prog.rpartition(' ')[2]}|capture): ", "", text)
    known = {key: action for key, action in keys(options.parser, True).items() if ":" not in str(action.metavar)}
    for key, action in known.items():
        if action.nargs == 0:
            text = text.replace(f"pass {action.dest}={action.const!r}", f"pass {action.option_strings[-1]}")
            continue
        called = rf"(?<![\w.])(?:{_CALLS})\({action.dest}=(?:'([^']+)'|([^(),]+))\)"
        said = rf"(?<![\w.(-])(?<!\] ){action.dest}=(?:'([^']+)'|([\w.']+))"
        text = re.sub(called, rf"--{key} \1\2", text)
        text = re.sub(said, functools.partial(_outside, f"--{key}"), text)
    for key in known:
        text = re.sub(rf"\b{key}\(\w+=([^(),]+)\)", rf"--{key} \1", text)
        text = re.sub(rf"\bto_{key}\('([^']+)'\)", rf"--{key} \1", text)
    return text


def _outside(option: str, found: re.Match[str]) -> str:
    """An option with its value; within brackets it is of the user's code, as in `torch.eye(3, dtype=x.dtype)`."""
    before = found.string[: found.start()]
    return f"{option} {found[1] or found[2]}" if before.count("(") <= before.count(")") else found[0]


def _is_off(action: Action) -> bool:
    return isinstance(action, argparse._StoreFalseAction)


def _takes_list(action: Action) -> bool:
    """Whether an option has several values: by its `nargs`, or because its type makes a list of a text."""
    return action.nargs in ("+", "*") or (callable(action.type) and isinstance(_typed(action, "1"), list))


def _typed(action: Action, text: str) -> Any:
    return action.type(text) if callable(action.type) else text


def _option_text(action: Action, value: Any, folder: Path) -> Any:
    """A value of the file as the option has it on the command line.

    Raises:
        ValueError, ArgumentTypeError: it is none.
    """
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError
        return action.default if value is _is_off(action) else action.const
    several = isinstance(action.nargs, int) or _takes_list(action)
    texts = [_as_argument(action, one) for one in (value if isinstance(value, list) and several else [value])]
    if isinstance(action.nargs, int):
        if len(texts) != action.nargs:
            raise ValueError
        return [_relative_path(text, kind, folder) for text, kind in zip(texts, action.metavar or (), strict=True)]
    read = [_typed(action, text) for text in texts]
    if several:
        return [_relative_path(one, action.metavar, folder) for part in read for one in part]
    if action.choices is not None and read[0] not in action.choices:
        raise ValueError
    return _relative_path(read[0], action.metavar, folder)


def _as_argument(action: Action, value: Any) -> str:
    """A value as it is written on the command line."""
    plain = action.type is None or _takes_list(action)
    if isinstance(value, bool) or not isinstance(value, str if plain else str | int | float):
        raise ValueError
    if isinstance(value, str) and isinstance(_typed(action, value), int | float) and _is_number(value):
        raise argparse.ArgumentTypeError(f"{value!r} is a string: write {value}, without quotes")
    return str(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _relative_path(value: Any, kind: Any, folder: Path) -> Any:
    """A path from the current folder, if it is one."""
    return os.path.relpath(folder / value) if kind == PATH and value != "-" and not os.path.isabs(value) else value
