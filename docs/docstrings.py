"""Docstrings in Google's style, and types as people write them: what `reference.py` makes pages of."""

import collections.abc
import inspect
import re
import textwrap
import types
import typing
from dataclasses import dataclass, field
from typing import Any

SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Warns):\n")
ENTRY = re.compile(r"^(?P<names>[^\s:`\"][^:`\"]*?)(?: \((?P<type>[^)]*)\))?: ", re.MULTILINE)
# Where a type is private, what users pass or get.
CALLED = {
    "ProcessGroup": "torch.distributed.ProcessGroup",
    "Optimizer": "torch.optim.Optimizer",
    "GradScaler": "torch.amp.GradScaler",
    "HasContents": "Manifest",
    "CheckManifest": "Callable",
    "CheckDiff": "Callable",
    "Audit": "AuditReport",  # what its block gives
    "SearchStrategy": "SearchStrategy",
    "BoundArguments": "inspect.BoundArguments",
    "WatchOptions": "dict",
    "AuditOptions": "dict",
}


@dataclass
class Entry:
    """What a section says of one or more names."""

    names: tuple[str, ...]
    type: str
    text: str


@dataclass
class Docstring:
    text: list[str] = field(default_factory=list)  # paragraphs
    sections: dict[str, list[Entry]] = field(default_factory=dict)
    example: str = ""  # in Markdown

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=[.?])\s", self.text[0], maxsplit=1)[0] if self.text else ""


def read(one: Any) -> Docstring:
    """The docstring of an object."""
    text, _, example = (inspect.getdoc(one) or "").partition("\nExample:\n")  # the last section, if there is one
    doc, examples = Docstring(), [example] if example else []
    for block in re.split(r"\n\s*\n", text):
        section = SECTION.match(block)
        if block.startswith(">>>"):
            examples.append(block)
        elif section is not None:
            doc.sections[section[1]] = entries(textwrap.dedent(block[section.end() :]).strip(), section[1] == "Returns")
        elif block.startswith("==="):
            doc.text.append(table(block))
        elif block.strip():
            doc.text.append(" ".join(block.split()))
    doc.example = "\n\n".join(map(shown, examples))
    return doc


def table(block: str) -> str:
    """A table between lines of `===`, in Markdown."""
    rule, head, _, *rows, _ = block.splitlines()
    ends = [span.span() for span in re.finditer("=+", rule)]
    lines = [[row[start:end].strip().replace("``", "`") for start, end in ends] for row in (head, *rows)]
    lines.insert(1, ["---"] * len(ends))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def shown(example: str) -> str:
    """An example as a block: a session, a file of tests with a run of it, or a cell."""
    text = inspect.cleandoc(example)
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    file = re.match(r"# (test_\w+\.py)\n", text)
    if file is None:
        return f"```\n{text}\n```"
    option = " --dtypeguard-update" * ("dtype_manifest" in text)
    return f"```python\n{text}\n```\n\n```console\n$ pytest -q{option} {file[1]}\n...\n1 passed in ...\n```"


def entries(text: str, nameless: bool) -> list[Entry]:
    """Lines that are not indented begin an entry."""
    made = []
    for block in re.split(r"\n(?=\S)", text) if not nameless else [text]:
        head = None if nameless else ENTRY.match(block)
        names = tuple(re.split(r",\s*", head["names"])) if head else ()
        made.append(Entry(names, (head and head["type"]) or "", " ".join(block[head.end() if head else 0 :].split())))
    return made


# --- types --------------------------------------------------------------------------------------------------------


def typed(one: Any) -> dict[str, str]:
    """The types of the parameters of a function, `return` among them, or of the attributes of a class."""
    if inspect.ismodule(one):
        return {}
    if inspect.isclass(one):
        hints = (inspect.get_annotations(base) for base in reversed(one.__mro__))
        return {**{name: written(hint) for of_base in hints for name, hint in of_base.items()}, **_parameters(one)}
    return _parameters(one)


def ways(one: Any) -> list[Any]:
    """A function, or its overloads."""
    return list(typing.get_overloads(one) if inspect.isfunction(one) else ()) or [one]


def _parameters(one: Any) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for way in ways(one):
        try:
            signature = inspect.signature(way)
        except (TypeError, ValueError):  # a module, an exception
            continue
        hints = {name: one.annotation for name, one in signature.parameters.items()}
        for name in ("self", "args", "kwargs"):
            hints.pop(name, None)
        for name, hint in {**hints, "return": signature.return_annotation}.items():
            found.setdefault(name, []).append("" if hint is inspect.Parameter.empty else written(hint))
    return {name: _either(several) for name, several in found.items()}


def written(hint: Any) -> str:
    """A type: `torch.dtype | str | None`."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return "None"
    if isinstance(hint, str | typing.ForwardRef):
        return re.sub(r"\b(?:dtypeguard|typing|collections|abc)\.|['\"]", "", getattr(hint, "__forward_arg__", hint))
    if hasattr(hint, "__value__"):  # an alias with a name of its own: the names of dtypes, which are many
        return "str"
    if isinstance(hint, typing.TypeVar):
        return written(hint.__bound__) if hint.__bound__ else "Any"
    if origin in (typing.Union, types.UnionType):
        return _either(written(one) for one in inside if not _private(one))
    if origin is typing.Literal:
        return " | ".join(f'"{one}"' if isinstance(one, str) else repr(one) for one in inside)
    if origin is collections.abc.Callable:
        return "Callable"
    if origin in (collections.abc.Generator, collections.abc.Iterator):  # of a fixture, or a context manager
        return written(inside[0])
    if getattr(origin, "__name__", getattr(origin, "_name", "")) == "Unpack":
        return "options"
    if origin is not None:
        name = getattr(origin, "__name__", str(origin))
        return f"{CALLED.get(name, name)}[{', '.join('...' if one is ... else written(one) for one in inside)}]"
    name = getattr(hint, "__name__", str(hint))
    if getattr(hint, "__module__", "").startswith("torch.nn"):
        return f"torch.nn.{name}"
    if isinstance(hint, type) and hint.__module__ == "torch":
        return f"torch.{name}"
    return CALLED.get(name, str(hint) if str(hint).startswith("torch.") else name)


def _either(kinds: typing.Iterable[str]) -> str:
    """Each of several types once; what is within brackets stays together."""
    every = (part for kind in kinds for part in re.split(r" \| (?![^\[]*\])", kind) if part)
    return " | ".join(dict.fromkeys(every))


def _private(hint: Any) -> bool:
    """An enum of ours, whose members have names that are written as text."""
    return getattr(hint, "__name__", "") in ("Mode", "Casting")
