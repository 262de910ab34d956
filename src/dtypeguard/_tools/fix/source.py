"""A source file of the program: its syntax, with the place of each node, and changes to its text."""

import functools
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider

from ..._engine.watch.spots import Spot

Node = cst.CSTNode
N = TypeVar("N", bound=Node)
Scope = cst.FunctionDef | cst.ClassDef | cst.Module | cst.Lambda
_ENDS = re.compile(r"\r\n|\r|\n")  # of lines, for Python; `str.splitlines` knows more


@dataclass(frozen=True, order=True)
class Change:
    """A replacement in one file: characters from `begin` to before `end` become `text`."""

    file: str
    begin: int
    end: int
    text: str


def arguments(call: Node) -> Sequence[cst.Arg]:
    """The arguments of a call; none of what is no call."""
    return call.args if isinstance(call, cst.Call) else ()


def argument(call: Node, name: str) -> cst.Arg | None:
    """The argument that a call passes by a name."""
    return next((arg for arg in arguments(call) if arg.keyword is not None and arg.keyword.value == name), None)


Candidate = list[Change]


class Unfit(Exception):
    """A candidate that the shape of the code does not allow."""


def decode(data: bytes) -> tuple[str, str]:
    """The text of a source file, with its line ends, and its encoding (PEP 263)."""
    encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    return data.decode(encoding), encoding


def apply(text: str, changes: Iterable[Change]) -> str:
    """A text with changes, which do not overlap; those at one place in their order."""
    parts, last = [], 0
    for change in sorted(changes, key=lambda change: (change.begin, change.end)):
        if change.begin < last:
            raise ValueError("two edits overlap")
        parts += [text[last : change.begin], change.text]
        last = change.end
    return "".join([*parts, text[last:]])


class Text:
    """The syntax of one file."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text = file, text
        self.module = cst.parse_module(text.removeprefix("\ufeff"))
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        self._ranges = wrapper.resolve(PositionProvider)
        self.parents = wrapper.resolve(ParentNodeProvider)
        first = len(text) - len(text.removeprefix("\ufeff"))
        self._lines = [first, *(match.end() for match in _ENDS.finditer(text))]
        self.newline = self.module.default_newline

    # ------------------------------------------------------------ places

    def code(self, node: Node) -> str:
        """A node as it is written, with its parentheses."""
        begin, end = self.extent(node)
        return self.text[begin:end]

    def range(self, node: Node) -> CodeRange:
        found: CodeRange = self._ranges[node]
        return found

    def line(self, node: Node) -> int:
        return int(self.range(node).start.line)

    def offset(self, line: int, column: int) -> int:
        return self._lines[line - 1] + column

    def extent(self, node: Node) -> tuple[int, int]:
        """Where a node begins and ends in the text, with its parentheses."""
        place = self.range(node)
        begin, end = self.offset(place.start.line, place.start.column), self.offset(place.end.line, place.end.column)
        sides = (getattr(node, "lpar", ()), getattr(node, "rpar", ()))  # of some nodes a sentinel, or one alone
        before, after = (
            sum(len(self.module.code_for_node(one)) for one in side) if isinstance(side, list | tuple) else 0
            for side in sides
        )
        return begin - before, end + after

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """All nodes that have a place, in the order of the text, outer ones first."""
        places = [(node, self._ranges.get(node)) for node in self.parents]
        known = [(node, place) for node, place in places if place is not None]
        known.sort(key=lambda row: (row[1].start.line, row[1].start.column, -row[1].end.line, -row[1].end.column))
        return [node for node, _ in known]

    def of(self, *kinds: type[N]) -> Iterator[N]:
        """The nodes of some kinds, in the order of the text."""
        return (node for node in self.nodes if isinstance(node, kinds))

    def at(self, spot: Spot) -> Node | None:
        """What stands at a spot: an expression, or the statement of its line.

        Python has a call of a method whose name is on a later line begin at that name.
        """
        for node in self.of(cst.BaseExpression):  # type: ignore[type-abstract]
            end, first = self.range(node).end, node
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                named = self.range(node.func.attr).start
                first = node.func.attr if named.line == spot.line != self.line(node) else node
            begin = self.range(first).start
            if (begin.line, begin.column, (end.line, end.column)) == (spot.line, spot.begin, spot.stop):
                return node
        return self.statement_at(spot.line)

    def statement_at(self, line: int) -> Node | None:
        """The innermost statement that a line belongs to."""
        found = None
        for node in self.nodes:
            if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                place = self.range(node)
                last = place.end.line
                if not isinstance(node, cst.SimpleStatementLine):
                    last = self.line(node.cases[0] if isinstance(node, cst.Match) else node.body) - 1
                if place.start.line <= line <= max(last, place.start.line):
                    found = node
        return found

    def up(self, node: Node) -> Iterator[Node]:
        """What a node stands in, from inside."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def statement(self, node: Node) -> Node:
        """The statement that a node belongs to."""
        kinds = (cst.SimpleStatementLine, cst.BaseCompoundStatement)
        return node if isinstance(node, kinds) else next((one for one in self.up(node) if isinstance(one, kinds)), node)

    def scope(self, node: Node) -> Scope:
        """The function, class or module that a node stands in."""
        return next(one for one in self.up(node) if isinstance(one, Scope))

    def inside(self, node: Node, outer: Node) -> bool:
        return node is outer or any(one is outer for one in self.up(node))

    def block(self, statement: Node) -> Sequence[Node]:
        """The statements beside one, itself among them."""
        return getattr(self.parents[statement], "body", ())

    def below(self, node: Node, *kinds: type[N]) -> Iterator[N]:
        """The nodes of some kinds in a node, itself among them, outer ones first."""
        waiting: list[Node] = [node]
        while waiting:
            one = waiting.pop()
            if isinstance(one, kinds) and one in self._ranges:
                yield one
            waiting += reversed(one.children)

    # ------------------------------------------------------------ changes

    def replace(self, node: Node, text: str) -> Change:
        return Change(self.file, *self.extent(node), text)

    def without_argument(self, call: cst.Call, argument: cst.Arg) -> Change:
        """An argument of several gone, with its comma."""
        place = next(number for number, one in enumerate(call.args) if one is argument)
        if place:
            return Change(self.file, self.extent(call.args[place - 1].value)[1], self.extent(argument.value)[1], "")
        return Change(self.file, self.extent(argument)[0], self.extent(call.args[1])[0], "")

    def add_argument(self, call: cst.Call, text: str) -> Change:
        """One more argument of a call, behind the others."""
        if not call.args:
            end = self.extent(call)[1] - len(call.rpar) - 1
            return Change(self.file, end, end, text)
        end = self.extent(call.args[-1].value)[1]
        return Change(self.file, end, end, f", {text}")

    def keyword(self, call: cst.Call, name: str, value: str) -> list[Change]:
        """A call with a keyword argument of this value."""
        said = argument(call, name)
        return [self.add_argument(call, f"{name}={value}") if said is None else self.replace(said.value, value)]

    def around(self, node: Node, before: str, after: str) -> list[Change]:
        begin, end = self.extent(node)
        return [Change(self.file, begin, begin, before), Change(self.file, end, end, after)]

    def after(self, node: Node, text: str) -> list[Change]:
        """`.half()` behind an expression, which gets parentheses if it needs them."""
        closed = isinstance(node, cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.Tuple | cst.List)
        bare = not closed or (isinstance(node, cst.Tuple) and not node.lpar)
        if bare and not getattr(node, "lpar", ()):
            return self.around(node, "(", f"){text}")
        end = self.extent(node)[1]
        return [Change(self.file, end, end, text)]

    def closed(self, node: Node) -> str:
        """An expression as it is written, in parentheses if a method cannot be called on it without."""
        open_, *_ = self.after(node, "")
        return f"({self.code(node)})" if open_.text == "(" else self.code(node)

    def indent(self, statement: Node) -> str:
        """The white space before a statement."""
        begin = self.lines(statement)[0]
        return self.text[begin : self.extent(statement)[0]]

    def lines(self, statement: Node) -> tuple[int, int]:
        """From the first column of a statement's first line to the first one behind its last line."""
        place = self.range(statement)
        last = place.end.line if place.end.column or place.end.line == place.start.line else place.end.line - 1
        end = self._lines[last] if last < len(self._lines) else len(self.text)
        return self._lines[place.start.line - 1], end

    def before_line(self, statement: Node, *written: str) -> Change:
        """Lines of code before a statement and the comments that stand directly above it, with its indentation."""
        begin, indent = self.lines(statement)[0], self.indent(statement)
        for above in reversed(self._lines[: self.range(statement).start.line - 1]):
            if not self.text[above:begin].startswith(f"{indent}#"):
                break
            begin = above
        return Change(self.file, begin, begin, "".join(f"{indent}{line}{self.newline}" for line in written))

    def after_line(self, statement: Node, *written: str) -> Change:
        """The same behind it."""
        end, indent = self.lines(statement)[1], self.indent(statement)
        first = "" if self.text[:end].endswith(("\n", "\r")) else self.newline
        text = first + "".join(f"{indent}{line}{self.newline}" for line in written)
        return Change(self.file, end, end, text.removesuffix(self.newline) if first else text)

    def without(self, statement: Node) -> Change:
        """A statement's lines gone, if it stands alone on them; `pass` where its block would be empty."""
        simple = isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1
        condition = isinstance(statement, cst.If) and not statement.orelse
        if not (simple or condition) or not self.block(statement):
            raise Unfit
        begin, end = self.lines(statement)
        alone = len(self.block(statement)) == 1 and not isinstance(self.parents[statement], cst.Module)
        return Change(self.file, begin, end, f"{self.indent(statement)}pass{self.newline}" if alone else "")

    def line_of(self, node: Node) -> cst.SimpleStatementLine:
        """The statement that a node stands in, which is alone on its line."""
        statement = self.statement(node)
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) > 1:
            raise Unfit
        return statement
