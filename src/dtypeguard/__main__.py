"""`python -m dtypeguard`: audit a program, compare dtypes, explain a rule, check the environment."""

import argparse
import difflib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

import dtypeguard

from ._audit.command import Usage, run
from ._base import config
from ._base.codes import MISTAKES, Mistake
from ._base.dtypes import name_of
from ._compare import command as compare
from ._report.pages import FAMILIES, entry_of, page
from ._watch.rule import RULES, Rule, Severity
from ._watch.selection import Selection

_EXAMPLES = """\
examples:
  python -m dtypeguard audit train.py --lr 1e-3
  python -m dtypeguard audit --ignore DG3 --html report.html -m mypackage.train
  python -m dtypeguard audit --write-baseline known.json train.py   # accept all findings
  python -m dtypeguard audit --baseline known.json train.py         # fail on new findings
  python -m dtypeguard compare mypackage.models:make_model --batch mypackage.data:make_batch --dtype bfloat16
  python -m dtypeguard rules DG309
  python -m dtypeguard dryrun mypackage.net:Net --example mypackage.net:batch --require bfloat16
"""
_STATUS = """\
exit status: the program's own if that is not 0; else 1 if a finding fails, 2 for wrong usage. [tool.dtypeguard] in
pyproject.toml (select, ignore, severity, per-file-ignores) also chooses rules. A comment turns a rule off for a line:
# dtypeguard: ignore[DG102]
"""
_COMPARED = """\
example:
  python -m dtypeguard compare mypackage.models:make_model --batch mypackage.data:make_batch --dtype bfloat16

exit status: 1 if the error is larger than --max-error, 2 for wrong usage and for what cannot be compared.
"""
_OPTIONAL = ("rich", "jinja2", "hypothesis", "pytest")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and give the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except Usage as error:
        options.parser.error(str(error))  # does not return
        return 2
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    name = os.path.basename(sys.argv[0])
    name = "python -m dtypeguard" if name in ("__main__.py", "-m", "") else name
    parser = argparse.ArgumentParser(
        name,
        description="find dtype mistakes in PyTorch programs",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=dtypeguard.__version__, help="print the version")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")

    def command(
        name: str, does: Callable[[argparse.Namespace], int], says: str, **more: Any
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=says,
            description=says,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **more,
        )
        made.set_defaults(run=does, parser=made)
        return made

    ways = f"{name} audit [options] script.py [argument ...]\n       {name} audit [options] -m module [argument ...]"
    says = "run a script or a module, and print its dtype mistakes"
    _audit_options(command("audit", run, says, usage=ways, epilog=_STATUS))
    says = "measure what a lower precision costs a model, and which layers pay"
    compare.add_options(command("compare", compare.run, says, epilog=_COMPARED))
    says = "tell in which dtypes a model runs, and what comes out"
    _dryrun_options(command("dryrun", _dryrun, says))
    rules = command("rules", _rules, "list the rules and the errors of contracts, or explain some")
    rules.add_argument(
        "rules", nargs="*", metavar="rule", help="an id, a name or a family: DG309, unscale-twice, DG3, DG001"
    )
    command("check", _check, "print the environment; status 1 if something is wrong with it")
    command("version", _version, "print the version")
    return parser


def _audit_options(audit: argparse.ArgumentParser) -> None:
    add = audit.add_argument
    severities = [*(severity.value for severity in Severity), "never"]
    add(
        "--select",
        type=_list,
        action="extend",
        metavar="RULES",
        help="use only these rules: ids, names or families, with commas",
    )
    add("--ignore", type=_list, action="extend", metavar="RULES", default=[], help="leave out these rules")
    values = audit.add_mutually_exclusive_group().add_argument
    says = "run each operation once more in a wider dtype, and find the lines that spoil values (rules DG9)"
    values("--values", action="store_true", help=says)
    says = "find only values that are not finite, and the lines where they are born; quick"
    values("--range", dest="values", action="store_const", const="range", help=says)
    add("--fail-on", choices=severities, default="warning", help="the lowest severity that fails (default: warning)")
    says = "the lowest severity that is printed (default: info)"
    add("--severity", choices=severities[:-1], default="info", help=says)
    says = "of what is printed: text, annotations of GitHub, a SARIF log, or JSON (default: text)"
    add("--format", choices=("text", "github", "sarif", "json"), default="text", help=says)
    add("--output", metavar="PATH", help="print into this file; - is standard output (default)")
    add("--no-casts", dest="casts", action="store_false", help="leave out the table of casts")
    add(
        "-q",
        "--quiet",
        action="store_true",
        help="no casts; and nothing at all if the exit status is 0",
    )
    add("--json", metavar="PATH", help="write the report as JSON too; for -, the same as --format json")
    add("--html", metavar="PATH", help="write the report as an HTML page")
    add("--baseline", metavar="PATH", help="print, and fail on, only findings that are not in this file")
    add("--write-baseline", metavar="PATH", help="write the findings to this file, and do not fail on them")
    add("-m", dest="module", action="store_true", help="the program is a module, as in `python -m`")
    add("program", help="the script, folder or archive to run; with -m, the module")
    add("arguments", nargs=argparse.REMAINDER, metavar="argument", help="the program's arguments")


def _dryrun_options(dry: argparse.ArgumentParser) -> None:
    add = dry.add_argument
    add("model", help="package.module:function that returns the model; or its class")
    says = "package.module:function that returns a tensor, a tuple of positional or a dict of keyword arguments"
    add("--example", metavar="FUNCTION", help=f"{says} (default: drawn from annotations)")
    says = "status 1 unless the model runs in these dtypes, with inputs of the same dtype: names, with commas"
    add("--require", type=_list, action="extend", metavar="DTYPES", default=[], help=says)
    add("--html", metavar="PATH", help="write the table as an HTML page")
    add("--json", metavar="PATH", help="write the table as JSON")


def _dryrun(options: argparse.Namespace) -> int:
    from ._dryrun.command import run as run_dry

    return run_dry(options)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


# --- rules --------------------------------------------------------------------------------------------------------


def _rules(options: argparse.Namespace) -> int:
    single: list[Rule | Mistake] = []
    rows = [] if options.rules else _all()
    for name in options.rules:
        found = _named(name)
        (rows if len(found) > 1 else single).extend(found)
    if rows:
        _print_table(rows)
    for number, rule in enumerate(single):
        print("\n" * bool(number or rows), end="")
        _print_page(rule)
    return 0


def _all() -> list[Rule | Mistake]:
    return [*MISTAKES.values(), *RULES.values()]


def _named(name: str) -> list[Rule | Mistake]:
    for spelling in (name.upper(), name.lower()):
        found = [one for one in _all() if spelling in (one.id, one.id[:3], one.name)]
        if found:
            return found
    known = [word for one in _all() for word in (one.id, one.name)]
    near = [*difflib.get_close_matches(name.upper(), known, 2), *difflib.get_close_matches(name.lower(), known, 3)]
    families = ", ".join(FAMILIES)
    meant = f"did you mean {' or '.join(near)}?" if near else f"there are ids, names, and the families {families}"
    raise Usage(f"there is no rule {name!r}: {meant}")


def _print_table(rows: Iterable[Rule | Mistake]) -> None:
    cells = [(one.id, one.kind, one.name, one.summary) for one in map(entry_of, rows)]
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table("rule", "severity or class", "name", "summary")
        for row in cells:
            table.add_row(*map(Text, row))
        Console(highlight=False).print(table)
        return
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    for row in cells:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))


def _print_page(rule: Rule | Mistake) -> None:
    text = page(rule.id)
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    else:
        print(text, end="")


# --- check, version -----------------------------------------------------------------------------------------------


def _version(_: argparse.Namespace) -> int:
    print(dtypeguard.__version__)
    return 0


def _check(_: argparse.Namespace) -> int:
    problems = []
    for name, ask in _QUESTIONS.items():
        try:
            answer = ask()
        except Exception as error:  # whatever it is, it is what the user wants to know
            answer = f"problem: {error}"
            problems.append(name)
        print(f"{name:<14} {answer}")
    if problems:
        print(f"\nproblems with: {', '.join(problems)}")
    return 1 if problems else 0


def _devices() -> str:
    names = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        for index in range(torch.accelerator.device_count()):
            name = f" ({torch.cuda.get_device_name(index)})" if kind and kind.type == "cuda" else ""
            names.append(f"{kind}:{index}{name}")
    return ", ".join(names)


def _kinds() -> Iterator[str]:
    yield "cpu"
    if torch.accelerator.is_available():
        yield str(torch.accelerator.current_accelerator())


def _autocast() -> str:
    return ", ".join(f"{kind} {name_of(torch.get_autocast_dtype(kind))}" for kind in _kinds())


def _mode() -> str:
    variable, base, (told, file) = os.environ.get("DTYPEGUARD_MODE"), config.base(), config.read_project(os.getcwd())
    if base.mode is not None and base.under is None:
        return f"{base.mode.value} (DTYPEGUARD_MODE = {variable!r})"
    if told.mode is not None:
        return f"{told.mode.value} ({file}, for code below its folder)"
    return f"lenient (the default; DTYPEGUARD_MODE {'is not set' if variable is None else f'= {variable!r}'})"


def _casting() -> str:
    told, file = config.read_project(os.getcwd())
    if told.casting is None:
        return "precision (the default)"
    return f"{told.casting.name.lower()} ({file}, for code below its folder)"


def _selection() -> str:
    chosen = Selection.read()
    off = sorted(set(RULES) - chosen.rules)
    parts = [str(chosen.file or "no pyproject.toml with [tool.dtypeguard]"), f"{len(chosen.rules)} of {len(RULES)} on"]
    if off and len(off) < len(RULES) / 2:
        parts.append(f"without {', '.join(off)}")
    if chosen.severity is not Severity.INFO:
        parts.append(f"from severity {chosen.severity.value}")
    if chosen.per_file:
        parts.append(f"{len(chosen.per_file)} per-file-ignores")
    return "; ".join(parts)


def _optional() -> str:
    return ", ".join(f"{name} {_installed(name)}" for name in _OPTIONAL)


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


_QUESTIONS: dict[str, Callable[[], str]] = {
    "dtypeguard": lambda: f"{dtypeguard.__version__} in {os.path.dirname(dtypeguard.__file__)}",
    "python": lambda: f"{platform.python_version()} on {platform.system()}",
    "torch": lambda: str(torch.__version__),
    "devices": _devices,
    "default dtype": lambda: name_of(torch.get_default_dtype()),
    "autocast": _autocast,
    "mode": _mode,
    "casting": _casting,
    "rules": _selection,
    "optional": _optional,
}


if __name__ == "__main__":
    sys.exit(main())
