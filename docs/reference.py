"""Writes docs/reference.md and docs/reference/*.md: a page for each public name, from signatures and docstrings, for
each command, from its parser, and for what pytest, notebooks and pyproject.toml take.

    python docs/reference.py            writes them
    python docs/reference.py --check    says which of them are old, and what has no description

A page is plain Markdown, so that it reads alike here and on the site. Its examples are run by tests/test_docs.py.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from docstrings import Docstring, Entry, read, typed, ways
from options import COMMAND, PLUGINS, headed, of_command, of_pytest, of_settings, options

from dtypeguard._core.base.codes import DOCS, MISTAKES
from dtypeguard._show.result import Result

HERE = Path(__file__).parent
FOLDER, INDEX = HERE / "reference", HERE / "reference.md"

# A job, the guide to it, and the names that do it: below `dtypeguard`, `pytest` or `python -m dtypeguard`.
JOBS: dict[str, tuple[str, str]] = {
    "Contracts": (
        "[Quickstart](quickstart.md), [Semantics](semantics.md)",
        "guard guarded unguard is_guarded GuardedModule describe enforce check install_import_hook mode set_mode "
        "get_mode casts reset_casts",
    ),
    "Audit": ("[Audit](audit.md), [Mixed precision](amp.md)", "audit amp.watch"),
    "Compare": ("[Compare](compare.md), [Find where two programs part](howto/port.md)", "compare diff capture"),
    "Before a run": ("[Dry run](dryrun.md), [Manifests](howto/state.md)", "dryrun manifest"),
    "Test": (
        "[Test a model's dtypes](testing.md)",
        "testing.check_module testing.tensors testing.inputs_for testing.violations_of pytest.dtype_audit "
        "pytest.dtype_casts pytest.dtype_manifest pytest.dtype_diff pytest.dtypeguard_mode pytest.options",
    ),
    "Use with others": (
        "[Use with other libraries](wild.md), [In a notebook](howto/notebook.md)",
        "distributed.check_ranks integrations.lightning.DtypeGuardCallback "
        "integrations.transformers.DtypeGuardCallback integrations.notebook",
    ),
    "Commands and settings": (
        "[Audit on the command line](audit.md#on-the-command-line), [Continuous integration](howto/ci.md), "
        "[Settings in pyproject.toml](howto/settings.md)",
        "command.audit command.compare command.describe command.diff command.dryrun command.manifest command.rules "
        "command.doctor command.completion settings",
    ),
    "Results": (
        "[In a notebook](howto/notebook.md)",
        "results results.AuditReport results.Report results.Finding results.Spot results.Cast results.Edit "
        "results.Replacement results.Block results.Ranges results.Range "
        "results.Watch results.Metrics results.History results.Moment "
        "results.Casts results.CastRecord results.Comparison "
        "results.FormatComparison "
        "results.Layer results.Line results.Kept results.Placed results.ProgramDiff results.DiffRow results.Gradient "
        "results.Token results.DryrunTable results.DryrunCell results.Manifest results.StateDiff results.Difference "
        "results.Description results.HeldModule results.HeldArgument results.ImportHook testing.ModuleReport "
        "testing.Cell testing.Failure testing.Breach",
    ),
    "Errors and warnings": (
        "[All error codes](errors/index.md)",
        "DtypeGuardError DtypeError ShapeError DeviceError HintError CastError AnnotationError AmpError CompareError "
        "RankError StateError testing.CheckError results.EditError DtypeGuardWarning CastWarning InplaceOnCastWarning "
        "ContractWarning AmpWarning",
    ),
}
# What users call of a class; attributes are those of its docstring.
MEMBERS = {
    "results.AuditReport": "elapsed findings casts values ranges edits origin assert_clean save_baseline apply show",
    "results.Edit": "installed removes",
    "results.Finding": "name docs",
    "results.CastRecord": "what",
    "results.Difference": "what",
    "results.Watch": "report metrics log history remove",
    "results.Range": "smallest low high below beyond",
    "results.Comparison": "keep",
    "results.FormatComparison": "keep",
    "results.Line": "site",
    "results.Kept": "apply from_dict",
    "results.Placed": "apply remove filter to_recipe",
    "results.DryrunTable": "assert_runs",
    "results.Manifest": "save check diff",
    "results.ImportHook": "remove missing",
    "testing.ModuleReport": "traps",
    "integrations.lightning.DtypeGuardCallback": "report findings audited",
    "integrations.transformers.DtypeGuardCallback": "report findings audited",
}
SINCE = "Every name is there since 0.1.0, the first version."
WIDTH = 100
Missing = Callable[[str], None]


def names() -> list[str]:
    return [name for _, listed in JOBS.values() for name in listed.split()]


def known() -> dict[str, str]:
    """The page of a name, as docstrings write it: `dtypeguard.results.Finding`, `results.Finding` or `Finding`."""
    every = [
        name for name in names() if not name.startswith(("command.", "integrations.", "pytest.options", "settings"))
    ]
    short = {name.rpartition(".")[2]: name for name in reversed(every)}
    del short["results"]
    return {**short, **{spelt: name for name in every for spelt in (name, f"dtypeguard.{name}")}}


def found(name: str) -> Any:
    """The object of a page."""
    home, _, last = name.rpartition(".")
    if home == "pytest":
        modules = (importlib.import_module(part) for part in PLUGINS)
        return next(inspect.unwrap(vars(module)[last]) for module in modules if last in vars(module))
    if name in ("results", "integrations.notebook"):
        return importlib.import_module(f"dtypeguard.{name}")
    return getattr(importlib.import_module(f"dtypeguard.{home}".rstrip(".")), last)


def title(name: str) -> str:
    """What users write."""
    kind, _, rest = name.partition(".")
    special = {
        "pytest.options": "Options of pytest",
        "settings": "Settings of pyproject.toml and the environment",
        "integrations.notebook": "`%%dtypeguard`",
    }
    if name in special:
        return special[name]
    return {"command": f"`{COMMAND} {rest}`", "pytest": f"`{rest}`"}.get(kind, f"`dtypeguard.{name}`")


# --- pages --------------------------------------------------------------------------------------------------------


def pages(missing: Missing) -> dict[Path, str]:
    """Every file, with its text."""
    bodies, summaries = {}, {}
    for name in names():
        summaries[name], bodies[name] = page(name, lambda text, name=name: missing(f"{name}: {text}"))
    made = {FOLDER / f"{name}.md": [f"# {title(name)}", body, seen(name, bodies)] for name, body in bodies.items()}
    return {**{path: "\n\n".join(parts) for path, parts in made.items()}, INDEX: index(summaries)}


def page(name: str, missing: Missing) -> tuple[str, str]:
    """The first sentence of a page, and its text."""
    kind, _, rest = name.partition(".")
    if kind == "command":
        return of_command(rest)
    if name == "pytest.options":
        return of_pytest()
    if name == "settings":
        return of_settings()
    one = found(name)
    doc = read(one)
    body = list(of_class(name, one, doc, missing) if inspect.isclass(one) else of_function(name, one, doc, missing))
    return doc.summary, linked("\n\n".join(filter(None, body)), name)


def seen(name: str, bodies: dict[str, str]) -> str:
    """The guide, and the pages that name this one."""
    job = next(job for job, (_, listed) in JOBS.items() if name in listed.split())
    guides = re.sub(r"\]\(", "](../", JOBS[job][0]).split(", ")
    others = [f"[{title(one)}]({one}.md)" for one, body in bodies.items() if f"]({name}.md)" in body and one != name]
    rows = [*guides, *others[:8], "[Reference](../reference.md)"]
    return "## See also\n\n" + "\n".join(f"- {row}" for row in rows) + "\n"


def index(summaries: dict[str, str]) -> str:
    parts = [
        "# Reference\n\nA page for each name that you can use: what it takes, what it returns, what it raises, and an "
        f'example. {SINCE}\n\nWhere an option takes a dtype, it takes `torch.bfloat16`, "bfloat16" or "bf16".'
    ]
    for job, (guides, listed) in JOBS.items():
        rows = [f"| [{title(one)}](reference/{one}.md) | {cell(summaries[one])} |" for one in listed.split()]
        parts.append("\n".join([f"## {job}\n\nGuides: {guides}.\n", "| name | what it is |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\|", text)


# --- Python -------------------------------------------------------------------------------------------------------


def of_function(name: str, one: Any, doc: Docstring, missing: Missing) -> Iterator[str]:
    """A function, a fixture, a module."""
    if name.startswith("pytest."):
        yield "A fixture of pytest."
        given = inspect.signature(one).return_annotation
        if isinstance(given, type) and "__call__" in vars(given):
            yield signature(name.rpartition(".")[2], given.__call__)
    elif not inspect.ismodule(one):
        yield signature(f"dtypeguard.{name}", one)
    yield from doc.text
    if name == "integrations.notebook":
        yield from options(one._parser())
    yield from described(one, doc, missing)
    if not doc.example:
        missing("there is no example")
    if name == "results":
        for member in ("to_dict", "to_json", "to_html"):
            yield from of_member("result", Result, member, missing)
    if hasattr(one, "load"):  # `manifest.load`
        yield from of_member(f"dtypeguard.{name}", type(one), "load", missing)


def of_class(name: str, one: type, doc: Docstring, missing: Missing) -> Iterator[str]:
    members = MEMBERS.get(name, "").split()
    if issubclass(one, BaseException):
        yield f"Derives from {', '.join(f'`{base.__name__}`' for base in one.__bases__)}."
    elif not name.startswith(("results.", "testing.")):  # those are made by tools
        yield signature(f"dtypeguard.{name}", one)
    yield from doc.text
    yield from described(one, doc, missing, members=members)
    rows = [
        f"- [{mistake.id} {mistake.name}](../errors/{mistake.id}.md): {mistake.summary}"
        for mistake in MISTAKES.values()
        if mistake.kind == one.__name__
    ]
    if rows:
        yield "## Codes"
        yield "The page of a code has a program that ends so, and what to write instead.\n\n" + "\n".join(rows)
    if issubclass(one, Result):
        yield "`to_dict()`, `to_json(path=None)` and `to_html(path=None)` are those of [all results](results.md)."
    for member in members:
        if not isinstance(inspect.getattr_static(one, member), property):
            yield from of_member(name.rpartition(".")[2], one, member, missing)


def of_member(owner: str, one: type, name: str, missing: Missing) -> Iterator[str]:
    function = getattr(one, name)
    doc = read(function)
    yield f"## `{name}`"
    yield signature(f"{owner}.{name}", function)
    yield from doc.text
    yield from described(function, doc, lambda text: missing(f"{name}: {text}"), "### ")


def described(
    one: Any, doc: Docstring, missing: Missing, heading: str = "## ", members: Iterable[str] = ()
) -> Iterator[str]:
    """The sections of a docstring; types are those of the signature, or of the class."""
    types = typed(one)
    sections = {name: list(entries) for name, entries in doc.sections.items()}
    properties = filter(None, (of_property(one, name) for name in members))
    sections["Attributes"] = [*sections.get("Attributes", ()), *properties]
    for section, name in (("Args", "Parameters"), ("Attributes", "Attributes")):
        rows = []
        for entry in sections.get(section, ()):
            names = [(one, entry.type or types.get(one.lstrip("*"), "")) for one in entry.names]
            for one_name, kind in names:
                if not kind:
                    missing(f"{one_name} has no type")
            shown = [f"**`{one}`**" + f" ({code(kind)})" * (kind != "options") for one, kind in names]
            rows.append(f"- {', '.join(shown)}: {entry.text}")
        yield from headed(f"{heading}{name}", rows)
    if not inspect.isclass(one):
        told = {name.lstrip("*") for entry in sections.get("Args", ()) for name in entry.names}
        for name in sorted(types.keys() - told - {"return", "request"}):
            missing(f"the parameter {name} is not described")
        kind = types.get("return", "None")
        texts = [entry.text for entry in sections.get("Returns", ())]
        yield from headed(f"{heading}Returns", [": ".join([code(kind), *texts])] if kind != "None" else [])
        if kind != "None" and heading == "## " and not texts:
            missing("what it returns is not described")
    for section in ("Raises", "Warns"):
        entries = sections.get(section, ())
        rows = [f"- {', '.join(code(name, error=True) for name in one.names)}: {one.text}" for one in entries]
        yield from headed(f"{heading}{section}", rows)
    yield from headed(f"{heading}Example", [doc.example] if doc.example else [])


def of_property(one: type, name: str) -> Entry | None:
    value = inspect.getattr_static(one, name)
    if not isinstance(value, property):
        return None
    doc = read(value.fget)
    raises = [f"Raises {', '.join(e.names)}: {e.text}" for e in doc.sections.get("Raises", ())]
    return Entry((name,), typed(value.fget)["return"], " ".join([*doc.text, *raises]))


def signature(called: str, one: Any) -> str:
    """A signature as a block of code, without types."""
    lines = []
    for way in ways(one):
        parameters = [p for p in inspect.signature(way).parameters.values() if p.name != "self"]
        parts = [re.sub(r"='(.*)'$", r'="\1"', str(p.replace(annotation=p.empty))) for p in parameters]
        kinds = [p.kind for p in parameters]
        only = [place for place, kind in enumerate(kinds) if kind is kind.KEYWORD_ONLY]
        if only and kinds[0] is not None and inspect.Parameter.VAR_POSITIONAL not in kinds:
            parts.insert(only[0], "*")
        first = kinds.count(inspect.Parameter.POSITIONAL_ONLY)
        if first:
            parts.insert(first, "/")
        line = f"{called}({', '.join(parts)})"
        lines.append(line if len(line) < WIDTH else f"{called}(\n" + "".join(f"    {part},\n" for part in parts) + ")")
    lines = [*dict.fromkeys(lines)]  # some differ in types alone
    return "```py\n" + "\n".join(lines) + "\n```"


# --- links --------------------------------------------------------------------------------------------------------


def code(kind: str, error: bool = False) -> str:
    """A type or an exception in code, with a link if a page has it."""
    if error and not kind.isidentifier():
        return kind
    classes = [word for word in re.findall(r"[\w.]+", kind) if word in KNOWN and word != word.lower()]
    if len(classes) > 1 and "[" not in kind:
        return " or ".join(map(code, kind.split(" | ")))
    return f"[`{kind}`]({KNOWN[classes[0]]}.md)" if classes else f"`{kind}`"


def linked(text: str, name: str) -> str:
    """The names in code become links to their pages, but for those that the page itself has."""
    own = {name, name.rpartition(".")[2], *re.findall(r"^- \*\*`(\w+)`\*\*", text, re.MULTILINE)}
    own |= {*re.findall(r"^#+ .*?`?\.?(\w+)`?$", text, re.MULTILINE)}

    def link(match: re.Match[str]) -> str:
        known = KNOWN.get(match[1]) if match[1] not in own else None
        if known and known != match[1] and match[1].isalpha() and match[1].islower():
            known = None  # a word, and not the name of a page in a submodule
        return f"[`{match[1]}`]({known}.md)" if known else match[0]

    text = re.sub(re.escape(DOCS) + r"/([\w/-]+)\.md", r"[\1](../\1.md)", text)
    parts = re.split(r"(^```.*?^```$|^#.*?$|\[`[^\n`]*`\])", text, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"(?<![*`])`([\w.]+)`(?![*`])", link, part) for part in parts[::2]]
    return "".join(parts)


def main() -> int:
    """Write the pages, or say what is wrong with them."""
    wrong: list[str] = []
    made = pages(wrong.append)
    if "--check" not in sys.argv[1:]:
        FOLDER.mkdir(exist_ok=True)
        for path in {*FOLDER.glob("*.md")} - made.keys():
            path.unlink()
        for path, text in made.items():
            path.write_text(text)
    else:
        stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
        stale += {*FOLDER.glob("*.md")} - made.keys()
        wrong += [f"{path.relative_to(HERE.parent)} is old: python docs/reference.py" for path in stale]
    print("\n".join(wrong), file=sys.stderr, end="\n" * bool(wrong))
    return bool(wrong)


KNOWN = known()

if __name__ == "__main__":
    sys.exit(main())
