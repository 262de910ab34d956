"""The programs of `tests/rules`, and what is expected of them.

In the folder of a rule, `bad_1.py` and the like have one fault, `good_1.py` look alike and are right. The line of the
fault ends with the message of the finding, behind its severity where that is not the rule's own:

    model(x)  # expect: DG103 info "the message, in JSON"

`<...>` in a message stands for numbers that the machine's kernels decide.
`# fix: ...` below the program is what the finding says to write; the first program of a rule has it. A line that calls
`dtypeguard.amp.watch` is for the watch, and left out elsewhere; where the watch knows of a fault only later, that line
ends with `# expect: by a watch`. The first of each are the examples in the page of the rule.
"""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

FOLDER = Path(__file__).parent / "rules"
_EXPECTED = re.compile(r'  # expect: (DG\d{3}) (?:(info|warning|error) )?(".*")$')
_LATER = "  # expect: by a watch"
_FIX = "# fix: "
_IMPORT = "import dtypeguard\n\n"
_WATCH = re.compile(r"^.*\bdtypeguard\.amp\.watch\(.*\n", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """A script without its comments, and where its fault is.

    Attributes:
        source: the script.
        line: the number of the line with the fault; 0 in a program that is right.
        message: of the finding.
        severity: of the finding, where it is not the rule's own; else nothing.
        fix: what the finding says to write, where the program has that.
        watched_line: the number of the line that `amp.watch` names.
    """

    path: Path
    source: str
    line: int = 0
    message: str = ""
    severity: str = ""
    fix: str = ""
    watched_line: int = 0

    def expects(self, message: str) -> bool:
        """Whether that is the message."""
        return re.fullmatch(".*".join(map(re.escape, self.message.split("<...>"))), message) is not None

    @property
    def unwatched(self) -> str:
        """The script with an empty line where it begins a watch."""
        return _WATCH.sub("\n", self.source)

    @property
    def plain(self) -> "Program":
        """The program without its watch, and what it imports for that."""
        watch = _WATCH.search(self.source)
        if watch is None:
            return self
        source = self.source[: watch.start()] + self.source[watch.end() :]
        without = source.replace(_IMPORT, "", 1)
        source = source if "dtypeguard" in without else without
        return replace(self, source=source, line=self.line + source.count("\n") - self.source.count("\n"))


def read(path: Path) -> Program:
    """The program in a file."""
    lines, found, later, fix = path.read_text().splitlines(), None, 0, ""
    if lines[-1].startswith(_FIX):
        fix = lines.pop().removeprefix(_FIX)
    for number, line in enumerate(lines, 1):
        if expected := _EXPECTED.search(line):
            assert expected[1] == path.parent.name, f"{path}: {expected[1]}"
            assert found is None, f"{path} expects two findings"
            found = number, json.loads(expected[3]), expected[2] or ""
            lines[number - 1] = line[: expected.start()]
        elif line.endswith(_LATER):
            later, lines[number - 1] = number, line.removesuffix(_LATER)
    assert (found is not None) is path.name.startswith("bad"), path
    line, message, severity = found or (0, "", "")
    return Program(path, "".join(f"{line}\n" for line in lines), line, message, severity, fix, later or line)


def programs(kind: str, rule: str = "DG*") -> list[Program]:
    """The "bad" or the "good" programs, of one rule or all, in the order of their numbers."""
    found = sorted(FOLDER.glob(f"{rule}/{kind}_*.py"), key=lambda path: (path.parent.name, len(path.name), path.name))
    return [read(path) for path in found]
