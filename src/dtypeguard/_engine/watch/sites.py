"""Lines of the user's program: which one is running, what is written there.

Floor 1 of the audit. A site is made once for each instruction; looking it up costs a walk up the stack.
"""

import ast
import contextlib
import dis
import linecache
import re
import sys
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType, TracebackType

import torch
from torch.utils import _python_dispatch

from ..._core.base.frames import caller, internal, known_files, launches, shown, source_lines
from ..._core.base.frames import user as outside

_SHORT = 60
_LOOP = re.compile(r"\bfor (.+?) in ")
_FIRST = re.compile(r"\.values\b|\[0\]")
_OTHERS = re.compile(r", *_\w* *= *$")
_MANY = 100_000
_OF_TENSORS = ("shape", "size", "device")
_MODES = frozenset(["__torch_dispatch__", "__torch_function__"])
_BETWEEN = frozenset([torch._ops.__file__, _python_dispatch.__file__])
_sites: dict[
    tuple[int, int], "Site"
] = {}  # by the code's id, which a site keeps alive: equal code may stand in two files


class Site:
    """One instruction of the user's program, with the line that it stands on."""

    __slots__ = ("_calls", "_code", "_lasti", "_thrown", "_written", "file", "function", "line")

    def __init__(self, code: CodeType, lasti: int, line: int) -> None:
        self._code, self._lasti = code, lasti
        self._calls: str | None = None
        self._written: str | None = None
        self._thrown: bool | None = None
        self.file: str = code.co_filename
        self.line: int = line
        self.function: str = code.co_name

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}, in {self.function}"

    @property
    def key(self) -> tuple[str, int]:
        return self.file, self.line

    @property
    def mine(self) -> "Site | None":
        """The user's line that led here; where an audit was told whose lines to name, another one or none."""
        return self

    @property
    def source(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def written(self) -> str:
        """What the instruction computes, as the program has it; nothing where there is no source."""
        if self._written is None:
            self._written = " ".join(source_lines(self._code, self._lasti))
        return self._written

    @property
    def span(self) -> tuple[int, int, int] | None:
        """The column where that begins on the site's line, and where it ends: line and column, in characters.

        None where it is not known.
        """
        if self._instruction.startswith("STORE_"):
            stored = self._stored
            return (stored[0], self.line, stored[1]) if stored is not None and stored[2] else None
        first, last, begin, end = next(islice(self._code.co_positions(), self._lasti // 2, None), (None,) * 4)
        if first != self.line or last is None or begin is None or end is None:
            return None
        begins, ends = (linecache.getline(self.file, line).encode() for line in (self.line, last))
        return len(begins[:begin].decode(errors="replace")), last, len(ends[:end].decode(errors="replace"))

    @property
    def columns(self) -> tuple[int, int] | None:
        """Where that begins and ends on the site's line, in characters; None where it is not known."""
        if (span := self.span) is None:
            return None if self._stored is None else self._stored[:2]
        begin, last, end = span
        return begin, end if last == self.line else len(linecache.getline(self.file, self.line).split("#")[0].rstrip())

    @property
    def _stored(self) -> tuple[int, int, bool] | None:
        """The columns of the statement that stores something, without a comment and its neighbours; in characters.

        Of a statement that stores in several, it is the one; and whether it is.
        """
        line = linecache.getline(self.file, self.line)
        begin, end = next(islice(self._code.co_positions(), self._lasti // 2, None), (None,) * 4)[2:]
        with contextlib.suppress(SyntaxError, ValueError):
            statements = [] if begin is None else ast.parse(line.strip()).body
            indent = len(line) - len(line.lstrip())
            for one in statements:
                spot = one.col_offset, one.end_col_offset or 0
                if begin is not None and spot[0] <= begin - indent < spot[1]:
                    if part := bool(isinstance(one, ast.Assign) and end and isinstance(one.targets[0], ast.Tuple)):
                        spot = begin - indent, (end or 0) - indent
                    code = line.strip().encode()
                    first, last = (indent + len(code[:column].decode(errors="replace")) for column in spot)
                    return first, last, part
        return None

    @property
    def expression(self) -> str:
        """The same, shortened; a whole statement where the instruction stores something."""
        text = self.written
        if self._instruction.startswith("STORE_"):
            text = linecache.getline(self.file, self.line)[slice(*(self._stored or (None, None))[:2])].strip()
        if len(text) <= _SHORT:
            return text
        call = text[: text.find("(")]
        if self.calls and call.endswith(self.calls):  # nothing else is called before it
            return f"{call}(...)" if len(call) <= _SHORT // 2 else f"...{self.calls}(...)"
        return f"...{self.calls}(...)" if self.calls else f"{text[: _SHORT - 3]}..."

    @property
    def calls(self) -> str:
        """The name of the function or method that the instruction calls, if it calls one."""
        if self._calls is None:
            self._calls = ""
            with contextlib.suppress(SyntaxError, ValueError):
                call = ast.parse(self.written, mode="eval").body
                if isinstance(call, ast.Call):
                    self._calls = str(getattr(call.func, "attr", None) or getattr(call.func, "id", ""))
        return self._calls

    def operands(self, name: str, count: int) -> list[str]:
        """The code of both sides of an operator, or of the `count` operands of a call of `name`, if known."""
        with contextlib.suppress(SyntaxError, ValueError):
            (statement,) = ast.parse(self.written).body
            if isinstance(statement, ast.AugAssign):
                return [ast.unparse(statement.target), ast.unparse(statement.value)]
            node = getattr(statement, "value", None)
            if isinstance(node, ast.BinOp):
                return [ast.unparse(node.left), ast.unparse(node.right)]
            if isinstance(node, ast.Compare):
                return [ast.unparse(side) for side in (node.left, *node.comparators)] if len(node.ops) == 1 else []
            if isinstance(node, ast.Call) and self.calls == name:
                given = [part for arg in node.args for part in getattr(arg, "elts", [arg])]
                if len(given) < count and isinstance(node.func, ast.Attribute) and name != "where":  # which turns them
                    given.insert(0, node.func.value)
                return [ast.unparse(part) for part in given] if len(given) == count else []
        return []

    @property
    def sized_by(self) -> list[str]:
        """The variables whose sizes or device a factory of torch is called with, where it gets no dtype."""
        with contextlib.suppress(SyntaxError, ValueError):
            call = ast.parse(self.written, mode="eval").body
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("torch."):
                asked = [node for part in (*call.args, *call.keywords) for node in ast.walk(part)]
                of = [node for node in asked if isinstance(node, ast.Attribute) and node.attr in _OF_TENSORS]
                if all(keyword.arg != "dtype" for keyword in call.keywords):
                    return [node.value.id for node in of if isinstance(node.value, ast.Name)]
        return []

    def is_of(self, frame: FrameType) -> bool:
        """Whether the line is one of the function that runs in a frame."""
        return self._code is frame.f_code

    @property
    def loop(self) -> str:
        """The names that a loop gives to what it draws, as `x, y`, if this is where it draws; else nothing."""
        names = _LOOP.search(self.source) if self._instruction in ("FOR_ITER", "SEND") else None
        return names[1] if names else ""

    def drawn_by(self, name: str) -> ast.For | None:
        """The innermost loop around the line that gives a name, if the rest of a round does not use that any more."""
        with contextlib.suppress(SyntaxError, ValueError):
            tree = ast.parse("".join(linecache.getlines(self.file)))
            loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
            for loop in sorted(loops, key=lambda loop: -loop.lineno):
                names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
                if name in names and loop.lineno <= self.line <= (loop.end_lineno or 0):
                    uses = [node for node in ast.walk(loop) if isinstance(node, ast.Name) and node.id == name]
                    return None if any(node.lineno > self.line for node in uses) else loop
        return None

    @property
    def definition(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function that the line is in, as code."""
        with contextlib.suppress(SyntaxError, ValueError):
            tree = ast.parse("".join(linecache.getlines(self.file)))
            functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            around = [one for one in functions if one.lineno <= self.line <= (one.end_lineno or 0)]
            inner = max(around, key=lambda one: one.lineno, default=None)
            return inner if inner is not None and inner.name == self.function else None
        return None

    @property
    def raises(self) -> bool:
        """Whether the instruction is a `raise`."""
        return self._instruction == "RAISE_VARARGS"

    @property
    def _instruction(self) -> str:
        return dis.opname[self._code.co_code[self._lasti]]

    @property
    def thrown_away(self) -> bool:
        """Whether the program drops what this instruction gives it: an expression that is a statement."""
        if self._thrown is None:
            following = (i for i in dis.get_instructions(self._code) if i.offset > self._lasti)
            self._thrown = next((i.opname == "POP_TOP" for i in following if i.opname != "CACHE"), False)
        return self._thrown

    @property
    def first_alone(self) -> bool:
        """Whether of several results the program takes the first only, as the values of `values, _ = x.max(1)`."""
        before, call, after = self.source.partition(self.written or "\n")
        return bool(call) and bool(_FIRST.match(after) or _OTHERS.search(before))

    def gives_to(self, other: "Site") -> bool:
        """Whether what this instruction gives goes to another one, and to nobody else: both are of one expression."""
        if self._code is not other._code or self._lasti >= other._lasti:
            return False
        between = (i for i in dis.get_instructions(self._code) if self._lasti < i.offset < other._lasti)
        return not any(i.opname.startswith(("STORE_", "POP_TOP", "COPY")) for i in between)


def site_of(frame: FrameType) -> Site:
    site = _sites.get((id(frame.f_code), frame.f_lasti))
    return _site(frame.f_code, frame.f_lasti, frame.f_lineno) if site is None else site


def _site(code: CodeType, lasti: int, line: int) -> Site:
    if len(_sites) > _MANY:  # a program that makes code as it runs
        _sites.clear()
    site = _sites.get((id(code), lasti))
    return _sites.setdefault((id(code), lasti), Site(code, lasti, line)) if site is None else site


def returning(code: CodeType) -> Site | None:
    """The last `return` of a function."""
    last = [one.offset for one in dis.get_instructions(code) if one.opname.startswith("RETURN")][-1:]
    lines = [line for start, end, line in code.co_lines() if line and last and start <= last[0] < end]
    return _site(code, last[0], lines[0]) if lines else None


def site_at(file: str, line: int, function: str) -> Site:
    """A line that is known by its place only."""
    return Site(compile("", file, "exec").replace(co_name=function), 0, line)


def sites_in(text: str | None, pattern: re.Pattern[str]) -> list[Site]:
    """The user's lines in a text of torch's: file, line and function, as the pattern finds them."""
    found = pattern.findall(text or "")
    return [site_at(file, int(line), function) for file, line, function in found if not internal(file)]


_NOWHERE = Site(compile("", "<unknown>", "exec"), 0, 0)


def _is_between(code: CodeType) -> bool:
    """Modes of the program: not the line that somebody wrote."""
    return code.co_name in _MODES


def user_wrote(frame: FrameType) -> bool:
    """Whether a frame runs a line that is neither torch's nor dtypeguard's, nor of a mode or Python's own library."""
    file = frame.f_code.co_filename
    known = known_files.get(file)
    return not ((internal(file) if known is None else known) or _is_between(frame.f_code))


def here(frame: FrameType | None = None) -> Site:
    """The innermost line that is neither torch's nor dtypeguard's; where all are, the program's first line."""
    frame = frame or sys._getframe(1)
    found = caller(frame)
    while found is not None and _is_between(found.f_code):
        found = None if found.f_back is None else caller(found.f_back)
    while found is None and frame is not None:
        outer = frame.f_back
        if outer is None and not launches(frame.f_code.co_filename):
            found = frame
        frame = outer
    return _NOWHERE if found is None else site_of(found)


@dataclass(slots=True)
class Door:
    """A call of a module: the frame in which the audit makes it, and the user's line outside, once it was asked for."""

    frame: FrameType
    site: Site | None = None


def line(frame: FrameType | None, doors: list[Door], number: int) -> Site:
    """The same as `here`, but the way out of a module is gone once; `doors[number]` is the innermost one."""
    door = doors[number] if number >= 0 else None
    outer, found = door and door.frame, frame
    while found is not None:
        if door is not None and found is outer:
            if door.site is None:
                door.site = line(found.f_back, doors, number - 1)
            return door.site
        file = found.f_code.co_filename
        known = known_files.get(file)
        if not (internal(file) if known is None else known):
            return here(found) if _is_between(found.f_code) else site_of(found)
        found = found.f_back
    return here(frame)


def direct(frame: FrameType) -> bool:
    """Whether the program's own line calls torch here, but for modes that stand between."""
    found: FrameType | None = frame
    while found is not None and (found.f_code.co_name in _MODES or found.f_code.co_filename in _BETWEEN):
        found = found.f_back
    return found is not None and caller(found) is found


def user(frame: FrameType | None = None) -> Site:
    """The same, past installed packages, where there is such a line."""
    frame = frame or sys._getframe(1)
    found = outside(frame)
    return here(frame) if found is None else site_of(found)


def raising(frame: FrameType) -> tuple[Site, Site, FrameType]:
    """The same as `raised_at`, while the operation that raises is still running: this is its frame, or one inside."""
    found: list[FrameType] = []
    inner: FrameType | None = frame
    while inner is not None and len(found) < 2:
        if caller(inner) is inner and not _is_between(inner.f_code):
            found.append(inner)
        inner = inner.f_back
    sites = [site_of(one) for one in found] or [here(frame)]
    return sites[0], sites[-1], found[0] if found else frame


def raised_at(trace: TracebackType | None) -> tuple[Site, Site, FrameType | None]:
    """Where an exception rose: the user's innermost line, the one that called it, and the innermost frame of all.

    Where the program's own lines are all further out, it is the one that is running.
    """
    found = before = None
    innermost = None
    while trace is not None:
        innermost = trace.tb_frame
        if caller(innermost) is innermost:
            found, before = _site(innermost.f_code, trace.tb_lasti, trace.tb_lineno), found
        trace = trace.tb_next
    found = found or here(sys._getframe(1))
    return found, before or found, innermost
