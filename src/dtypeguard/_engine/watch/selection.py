"""Which rules are on, and where: arguments, `[tool.dtypeguard]` in pyproject.toml, comments on lines.

    [tool.dtypeguard]
    select = ["DG1", "DG5"]                       # default: all
    ignore = ["repeated-cast"]                    # ids, names or families
    severity = "warning"                          # the lowest that is reported; default: info
    per-file-ignores = { "tests/**" = ["DG102"] } # globs over paths below the file's folder, or over names of files
    source = ["src/", "mypackage"]                # report lines of these folders and packages only
    omit = ["src/vendored/**"]                    # and not of these files: globs

As with ruff, the file is the nearest one above the current folder that has the table, `select=` stands in place of its
`select` and `ignore`, and `ignore=` is added to them; `ignore` always beats `select`.

    y = a * b  # dtypeguard: ignore[DG102]        or without brackets: every rule

The comment counts for its own line; on the first or last line of a statement, for all of it. What is misspelt in one
has no effect, and is told with the findings of its file.
"""

import dataclasses
import linecache
import re
import tokenize
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..._core.base import pyproject
from ..._core.base.pyproject import near, no_rule
from .globs import matcher
from .rule import RULES, Severity, select
from .scope import Scope, scope_of

_RANK = {severity: rank for rank, severity in enumerate(Severity)}
# Bare, it ends there or goes on as prose: `ignore: DG1` and `ignore[DG1` are slips that must not silence everything.
_COMMENT = re.compile(r"#\s*dtypeguard:\s*ignore(?:\s*\[([^\[\]]*)\]|(?=\s+(?!DG\d)[^\s\[]|\s*$|#))", re.IGNORECASE)
_MEANT = re.compile(r"#\s*dtypeguard:\s*(\w+)[^#]*", re.IGNORECASE)  # the same, or nearly so

Globs = tuple[tuple[Callable[[str], bool], frozenset[str]], ...]


def reaches(severity: Severity | str, least: Severity | str) -> bool:
    """Whether a severity is as bad as another, or worse."""
    return _RANK[Severity(severity)] >= _RANK[Severity(least)]


@dataclasses.dataclass(frozen=True)
class Selection:
    """The rules that are on.

    Attributes:
        rules: their ids.
        severity: the lowest that is reported.
        per_file: what `per-file-ignores` says: which files, and ids.
        file: the pyproject.toml that was read, if one was.
        scope: whose lines are told; None for all.
    """

    rules: frozenset[str] = dataclasses.field(default_factory=lambda: frozenset(RULES))
    severity: Severity = Severity.INFO
    per_file: Globs = ()
    file: Path | None = None
    scope: Scope | None = None
    _files: dict[str, tuple[frozenset[str], "Comments"]] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def read(
        cls, rules: Any = None, ignore: Any = (), folder: str | Path | None = None, source: Any = None, omit: Any = None
    ) -> "Selection":  # fmt: skip
        """What the arguments of `audit` say, over what the nearest pyproject.toml says.

        Raises:
            TypeError: for an argument that is no collection of strings.
            ValueError: for a rule or source that there is not; for what is wrong in the file, with what is legal.
        """
        off = select(ignore)
        file, table = pyproject.find(folder)
        if rules is None:
            on = select(table["select"]) if "select" in table else frozenset(RULES)
            on -= select(table.get("ignore", ()))
        else:
            on = select(rules, "select")
        if source is not None or omit is not None:
            scope = scope_of(source, omit)
        else:
            scope = None if file is None else _scope(table, file)
        severity = Severity(table.get("severity", "info").lower())
        globs = () if file is None else _globs(table.get("per-file-ignores", {}), file.parent)
        return cls(on - off, severity, globs, file, scope)

    def on(self, rule_id: str, file: str = "", line: int = 0, severity: Severity | None = None) -> bool:
        """Whether a rule may report at a line. Never raises: a file that cannot be read has no comments."""
        if rule_id not in self.rules or not reaches(severity or RULES[rule_id].severity, self.severity):
            return False
        in_file, said = self._known(file)
        return rule_id not in in_file and rule_id not in said.off.get(line, ())

    def ignores(self, rule_id: str, file: str) -> bool:
        """Whether `per-file-ignores` has a rule for a file."""
        return rule_id in self._known(file)[0]

    def slips(self, file: str) -> dict[int, str]:
        """What is wrong with comments of a file, by line."""
        return self._known(file)[1].slips

    def _known(self, file: str) -> tuple[frozenset[str], "Comments"]:
        """What is off in a file, and by its comments."""
        known = self._files.get(file)
        if known is None:
            known = self._files[file] = self._ignored_in(file), comments(_lines(file))
        return known

    def _ignored_in(self, file: str) -> frozenset[str]:
        return frozenset().union(*(ids for matches, ids in self.per_file if matches(file)))


# --- pyproject.toml -----------------------------------------------------------------------------------------------


def _globs(table: Mapping[str, Any], root: Path) -> Globs:
    return tuple((matcher(pattern, root), select(rules)) for pattern, rules in table.items())


def _scope(table: Mapping[str, Any], file: Path) -> Scope | None:
    try:
        return scope_of(table.get("source"), table.get("omit"), file.parent)
    except ValueError as error:  # a source that there is not
        raise pyproject.wrong(file, ("source",), str(error)) from None


# --- comments -----------------------------------------------------------------------------------------------------


def _lines(file: str) -> list[str]:
    try:
        linecache.checkcache(file)  # it may have been edited since the last audit
        return linecache.getlines(file)
    except ValueError:  # no name that a file could have
        return []


@dataclasses.dataclass
class Comments:
    """What the comments of a file say, by line.

    Attributes:
        off: the rules that they switch off.
        slips: what is wrong with them.
    """

    off: dict[int, frozenset[str]] = dataclasses.field(default_factory=dict)
    slips: dict[int, str] = dataclasses.field(default_factory=dict)


def comments(lines: Iterable[str]) -> Comments:
    """What the comments of a file say."""
    lines = list(lines)
    found = Comments()
    if not any("dtypeguard" in line.lower() for line in lines):
        return found
    said: dict[int, frozenset[str]] = {}  # in the statement at hand
    first = 0
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            match token.type:
                case tokenize.COMMENT:
                    line = token.start[0]
                    said[line], slip = _read(token.string)
                    if slip:
                        found.slips[line] = slip
                case tokenize.NEWLINE:
                    _settle(found.off, said, first or token.start[0], token.start[0])
                    said, first = {}, 0
                case tokenize.NL | tokenize.INDENT | tokenize.DEDENT:
                    if not first:
                        said = {}  # a comment between statements
                case _:
                    first = first or token.start[0]
    except (tokenize.TokenError, SyntaxError):
        pass  # what came before it counts: a notebook's `%magic` is no Python
    return found


def _settle(found: dict[int, frozenset[str]], said: dict[int, frozenset[str]], first: int, last: int) -> None:
    """Enter the comments of the statement on lines `first` to `last`."""
    everywhere = said.get(first, frozenset()) | said.get(last, frozenset())
    for line in range(first, last + 1):
        ids = everywhere | said.get(line, frozenset())
        if ids:
            found[line] = found.get(line, frozenset()) | ids


def _read(comment: str) -> tuple[frozenset[str], str]:
    """The rules that a comment switches off, and what is wrong with it."""
    ids: set[str] = set()
    slips = []
    for found in _COMMENT.finditer(comment):
        for name in [*RULES] if found[1] is None else filter(None, re.split(r"[\s,]+", found[1])):
            try:
                ids |= select(name.upper() if name[:2].lower() == "dg" else name.lower())
            except ValueError:
                slips.append(f"{name!r} {no_rule(name)}")
    for found in _MEANT.finditer(comment):
        if not _COMMENT.match(found[0]) and (found[1].lower() == "ignore" or near(found[1], ["ignore"])):
            names = ", ".join(re.findall(r"DG\d+", found[0].upper())) or "DG103"
            slips.append(f"`{found[0].strip()}` ignores nothing: write `# dtypeguard: ignore[{names}]`")
    return frozenset(ids), "; ".join(slips)
