"""The pages of `reference.py` about options: of commands and magics, of pytest, and of pyproject.toml.

All is read from the parsers, so there is no other list of it. Each option has a heading, so that a search finds it.
"""

import argparse
import importlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from dtypeguard.__main__ import parser
from dtypeguard._core.base import pyproject
from dtypeguard._plugins import pytest as plugin
from dtypeguard._tools.settings import commands_of, keys, legal

COMMAND = "python -m dtypeguard"
COMMANDS = commands_of(parser(COMMAND))
PLUGINS = (plugin.__name__, *plugin.pytest_plugins)
MODES, CASTINGS, SEVERITIES = (", ".join(pyproject.LEGAL[name]) for name in ("mode", "casting", "severity"))
SETTINGS = {
    "select": 'Rules to use, as ids, names or families: `["DG1", "unscale-twice"]`. Default: all.',
    "ignore": "Rules to leave out.",
    "severity": f"The lowest severity that an audit reports: {SEVERITIES}.",
    "per-file-ignores": 'Rules to leave out in some files: `{ "tests/**" = ["DG102"] }`.',
    "source": 'Folders, files and packages whose lines are reported: `["src/", "mypackage"]`. Default: every line.',
    "omit": "Globs of files whose lines are not reported.",
    "mode": f"What contracts do with a violation: {MODES}. Default: lenient, and strict in pytest.",
    "casting": f"Which casts lenient mode may make: {CASTINGS}. Default: precision.",
}
VARIABLES = {
    "DTYPEGUARD_MODE": f"The mode of contracts: {MODES}. It is above pyproject.toml, and `off` above the code.",
    "NO_COLOR": "Reports have no colours.",
    "FORCE_COLOR": "Reports have colours, where they are not printed on a terminal too.",
    "COLUMNS": "The width of reports, in characters.",
}


def headed(heading: str, rows: list[str]) -> Iterator[str]:
    if rows:
        yield heading
        yield "\n".join(rows)


def of_command(name: str) -> tuple[str, str]:
    """The page of a command, from its parser."""
    command = COMMANDS[name]
    says = sentence(command.description)
    words = ["[options]", *(metavar(action) for action in command._actions if not action.option_strings)]
    usage = re.sub(r"\n\s+", "\n", command.usage) if command.usage else f"{COMMAND} {name} {' '.join(words)}"
    body = [f"```\n{usage}\n```", says, *options(command)]
    if command.epilog:
        body += ["## Examples and exit status", f"```\n{command.epilog.strip()}\n```"]
    return says, "\n\n".join(body)


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A heading for each option, so that a search finds it, and a list of arguments."""
    actions = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    rows = [f"- **`{metavar(action)}`**: {sentence(action.help)}" for action in actions if not action.option_strings]
    yield from headed("## Arguments", rows)
    own = [action for action in actions if action.option_strings and not isinstance(action, argparse._HelpAction)]
    if own:
        yield "## Options"
    for action in own:
        yield from option(action.option_strings, metavar(action) if action.nargs != 0 else "", action.help)


def option(names: Iterable[str], takes: str, says: str | None) -> Iterator[str]:
    yield f"### {', '.join(f'`{name}`' for name in names)}"
    yield " ".join(filter(None, [f"`{[*names][-1]} {takes}`:" if takes else "", sentence(says)]))


def metavar(action: argparse.Action) -> str:
    """What stands for the value of an option."""
    choices = "{" + ",".join(map(str, action.choices or ())) + "}"
    shown = action.metavar or (choices if action.choices else action.dest.upper())
    shown = shown if action.metavar or action.option_strings else action.dest
    text = " ".join(shown) if isinstance(shown, tuple) else shown
    return {"*": f"[{text} ...]", "+": f"{text} ...", argparse.REMAINDER: f"[{text} ...]"}.get(action.nargs, text)


def sentence(text: str | None) -> str:
    text = " ".join((text or "").split()).replace("%%", "%")
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")


class PytestOptions:
    """Takes the place of pytest's parser, and keeps what a plugin adds."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser(add_help=False)
        self.settings: list[tuple[str, str]] = []

    def getgroup(self, name: str) -> "PytestOptions":
        return self

    def addoption(self, *names: str, **options: Any) -> None:
        self.parser.add_argument(*names, **options)

    def addini(self, name: str, says: str, **_: Any) -> None:
        self.settings.append((name, says))


def of_pytest() -> tuple[str, str]:
    """Options, settings and markers of the plugin."""
    told, markers = PytestOptions(), []
    for part in PLUGINS:
        module = importlib.import_module(part)
        getattr(module, "pytest_addoption", lambda parser: None)(told)
        markers += [module._MARKER] if hasattr(module, "_MARKER") else []
    says = "What the plugin of pytest takes on the command line, in the configuration of pytest, and as markers."
    body = [says, *options(told.parser), "## Settings", "In the configuration of pytest."]
    for name, text in told.settings:
        body += option([name], "", text)
    body.append("## Markers")
    for marker in markers:
        name, text = marker.split(": ", 1)
        body += [f"### `{name.partition('(')[0]}`", f"`@pytest.mark.{name}`: {sentence(text)}"]
    return says, "\n\n".join(body)


def of_settings() -> tuple[str, str]:
    """The keys of pyproject.toml, and the variables of the environment."""
    says = "The keys of `[tool.dtypeguard]`, those of its tables for commands, and environment variables."
    body = [says, "## `[tool.dtypeguard]`"]
    for key in pyproject.KEYS:
        body += option([key], "", SETTINGS[key])
    for name in pyproject.COMMANDS:
        body += [f"## `[tool.dtypeguard.{name}]`", f"The options of [`{COMMAND} {name}`](command.{name}.md)."]
        for key, action in keys(COMMANDS[name]).items():
            off = isinstance(action, argparse._StoreFalseAction)
            text = f"False: {action.help}" if off else action.help
            body += [f"### `{key}`", f"{sentence(legal(action))} {sentence(text)}"]
    body.append("## Environment variables")
    for name, text in VARIABLES.items():
        body += option([name], "", text)
    return says, "\n\n".join(body)
