"""`python -m dtypeguard`: audit a program, compare dtypes, explain a rule, check the environment.

The parser is the one table of all options.
"""

import argparse
import contextlib
import errno
import importlib
import itertools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

import dtypeguard

from ._core.base import pyproject
from ._core.base.pages import FAMILIES, entries
from ._core.base.usage import INTERRUPTED, UNREAD, Failed, Raised, Usage
from ._tools.epilogs import EPILOGS
from ._tools.late import settle as settle_late
from ._tools.settings import PATH, commands_of, load, said_of, settle, share, take_back, typed

_MAKER = "package.module:make_model"
_MODEL = "a function that returns the model, or (model, batch)"
_SEVERITIES = pyproject.LEGAL["severity"]
_ENDED = (errno.EPIPE, errno.ENOSPC)
_POWERS = "2^k"  # as `_engine.watch.steps` has it, which imports torch


class _Parser(argparse.ArgumentParser):
    """A parser that knows what is wrong with the settings, which is told before what is wrong with the command."""

    wrong = ""
    given: Sequence[str] = ()  # the whole command line

    def unrecognized(self, unknown: Sequence[str]) -> str:
        """What to say of arguments that are none, and which option was meant."""
        known = self._option_string_actions
        names = [one.partition("=")[0] for one in unknown if one[:1] == "-"]
        meant = pyproject.near(names[0], known) if names else ""
        takes = {
            action.option_strings[0] for action in known.values() if names and names[0][2:] in (action.choices or ())
        }
        if len(takes) == 1:  # --sarif
            meant = f" (did you mean '{takes.pop()} {names[0][2:]}'?)"
        place = self.given.index(unknown[0]) if unknown and not names and unknown[0] in self.given else 0
        begun = next((one for one in reversed(self.given[:place]) if one[:1] == "-"), "")
        if (action := known.get(begun)) is not None and action.type is _list:  # --dtype float32 bfloat16
            there = self.given[self.given.index(begun) + 1 : place]
            meant = f" (did you mean '{begun} {','.join([*there, *unknown])}'?)"
        return f"unrecognized arguments: {' '.join(unknown)}{meant}"

    def error(self, message: str, details: str = "") -> NoReturn:
        if re.search(r" (is|are) required", message):  # perhaps it is there, and misspelt
            options = itertools.takewhile(lambda one: one != "--", self.given)
            names = (one.partition("=")[0] for one in options if one[:2] == "--")
            unknown = [name for name in names if name not in self._option_string_actions]
            message = self.unrecognized(unknown) if unknown else message
            if message.endswith(" command") and self._subparsers is not None:
                message += f" (one of {', '.join(self._subparsers._group_actions[0].choices or ())})"
        choice = re.fullmatch(r".* invalid choice: '([^']*)' \(choose from (.*)\)", message)
        meant = choice and pyproject.near(choice[1], re.findall(r"[^', ]+", choice[2]))
        message = self.wrong or message.replace(" (choose from ", f"{meant or ''} (choose from ", 1)
        below = f"{details}\n" if details else ""
        self.exit(2, f"{self.prog}: error: {message}\n{below}see: {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and give the exit status.

    If that is not 0, the reason is the last line on standard output; for wrong usage the line of the error. Where
    nobody reads any more, nothing is said.
    """
    try:
        try:
            return _main(argv)
        finally:  # what is left in the buffers, after a help text and a failure too
            _flush(sys.stdout)
            _flush(sys.stderr)
    except OSError as error:
        if not _is_end(error):
            raise
        unread = error.errno == errno.EPIPE
    for stream in (sys.stdout, sys.stderr):  # Python would say at its end what it cannot write
        try:
            _flush(stream)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if unread:  # `| head` has seen enough
        return UNREAD
    print("exit status 1: standard output has no room, so not all was written", file=sys.stderr)
    return 1


def _is_end(error: BaseException) -> bool:
    """Whether what is printed goes nowhere: the reader has gone, or the disk is full."""
    return isinstance(error, OSError) and error.errno in _ENDED and error.filename is None


def _flush(stream: TextIO | None) -> None:
    if stream is not None and not getattr(stream, "closed", False):  # a program may put its own there
        stream.flush()


def _main(argv: Sequence[str] | None) -> int:
    name = os.path.basename(sys.argv[0])
    top = parser("python -m dtypeguard" if name in ("__main__.py", "-m", "") else name)
    said: dict[str, Any] = {"given": sys.argv[1:] if argv is None else argv}
    try:
        pyproject.environment()
        load(top)
    except ValueError as error:
        said["wrong"] = str(error)
    for name, one in {"": top, **commands_of(top)}.items():
        vars(one).update(said if name != "rules" else {"given": said["given"]})  # it lists what may stand there
    options, unknown = top.parse_known_args(argv)
    if unknown or options.parser.wrong:
        options.parser.error(options.parser.unrecognized(unknown))
    settle(options)
    if options.run is _audit:
        settle_late(options)
        return _run(options)
    options.out = sys.stdout
    alone = getattr(options, "json", None) == "-"  # standard output is for JSON then, and nothing else
    with _warned(options), contextlib.redirect_stdout(sys.stderr) if alone else contextlib.nullcontext():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    """Run a command, and say why it ends with another status than 0."""
    try:
        status: int = options.run(options)
    except Usage as error:
        text = typed(options, str(error))
        reason, _, details = text.partition("\n")
        options.parser.error(f"{reason}{said_of(options, text)}", details)  # does not return
        return 2
    except Failed as failed:
        reason, _, details = typed(options, str(failed)).partition("\n")
        print(f"exit status 1: {reason}", flush=True)
        print(details, end="\n" * bool(details), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"exit status {INTERRUPTED}: interrupted")
        return INTERRUPTED
    except Exception as error:
        if _is_end(error):
            raise
        return _tell(options, error)
    return status


def _tell(options: argparse.Namespace, error: Exception) -> int:
    """Show what the user's own code raised, as Python would; a fault of ours with our frames."""
    from ._core.base.frames import runs_user_code, shortly
    from ._tools.audit.command import show

    own = error.__cause__ if isinstance(error, Raised) else error if runs_user_code(error) else None
    sys.stdout.flush()
    if own is None:
        sys.excepthook(type(error), error, error.__traceback__)
    else:
        show(own)
    print(f"exit status 1: {typed(options, str(error)) if isinstance(error, Raised) else shortly(error)}", flush=True)
    return 1


@contextlib.contextmanager
def _warned(options: argparse.Namespace) -> Iterator[None]:
    """Warnings for which no line of the user's is to blame are printed without one of the command's."""
    shown, own = warnings.formatwarning, os.path.dirname(os.path.abspath(dtypeguard.__file__))

    def brief(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if filename.startswith((own, "<frozen ")) or filename == sys.argv[0]:
            return f"{options.parser.prog}: warning: {typed(options, str(message))}\n"
        return shown(message, category, filename, lineno, line)

    warnings.formatwarning = brief
    try:
        yield
    finally:
        warnings.formatwarning = shown


def parser(name: str = "dtypeguard") -> _Parser:
    """The command line: the keys of `[tool.dtypeguard]`, the completion and the reference are read from it."""
    top = _Parser(
        name,
        description="find dtype mistakes in PyTorch programs",
        epilog=EPILOGS[""],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=dtypeguard.__version__, help="print the version")
    commands = top.add_subparsers(title="commands", required=True, metavar="command")

    ways = f"{name} audit [options] script.py [argument ...]\n       {name} audit [options] -m module [argument ...]"
    for command, (does, add_options, says) in _COMMANDS.items():
        made = commands.add_parser(
            command, usage=ways if does is _audit else None, help=says, description=says, epilog=EPILOGS[command],
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip
        made.set_defaults(run=does, parser=made)
        add_options(made)
        take_back(made)
    return top


def _audit_options(audit: argparse.ArgumentParser) -> None:
    add = audit.add_argument
    add("program", help="the script, folder or archive to run; with -m, the module")
    add("-m", dest="module", action="store_true", help="the program is a module, as in `python -m`")
    rules = audit.add_argument_group("rules and lines").add_argument
    says = "use only these rules: ids, names or families, with commas"
    rules("--select", type=_list, action="extend", metavar="RULES", help=says)
    says = "leave out these rules, with commas"
    rules("--ignore", type=_list, action="extend", metavar="RULES", default=[], help=says)
    says = (
        "report lines of these folders and packages only, with commas; what other code does, at the line that led there"
    )
    rules("--source", type=_list, action="extend", metavar="PATHS", help=says)
    says = "do not report lines of these files, with commas"
    rules("--omit", type=_list, action="extend", metavar="GLOBS", help=says)
    seen = audit.add_argument_group("values and steps")
    values = seen.add_mutually_exclusive_group().add_argument
    says = "run each operation once more in a wider dtype, and find the lines that spoil values (rules DG9)"
    values("--values", action="store_true", help=says)
    says = "find only values that are not finite, and the lines where they are born; quick"
    values("--range", dest="values", action="store_const", const="range", help=says)
    says = "look at values in some steps only: 2^k for steps 1, 2, 4, 8 ..., 100 for steps 1, 101, 201 ..."
    seen.add_argument("--every", type=_every, metavar="STEPS", help=says)
    says = "end the program after so many steps of its optimizers, and print the report"
    seen.add_argument("--steps", type=_steps, metavar="N", help=says)
    fails = audit.add_argument_group("exit status").add_argument
    says = "the lowest severity that fails (default: warning)"
    fails("--fail-on", choices=(*_SEVERITIES, "never"), default="warning", help=says)
    fails("--baseline", metavar="PATH", help="print, and fail on, only findings that are not in this file")
    fails("--write-baseline", metavar="PATH", help="write the findings to this file, and do not fail on them")
    prints = audit.add_argument_group("report")
    says = "the lowest severity that is printed (default: info)"
    prints.add_argument("--severity", choices=_SEVERITIES, default="info", help=says)
    says = "of what is printed: text, annotations of GitHub, a SARIF log, or JSON (default: by the ending of --output)"
    prints.add_argument("--output-format", choices=("text", "github", "sarif", "json"), help=says)
    _prints(prints, "no casts; and nothing at all if the exit status is 0 and no file was edited")
    prints.add_argument("--no-casts", dest="casts", action="store_false", help="leave out the table of casts")
    says = "write the report as JSON too; for -, the same as --output-format json"
    prints.add_argument("--json", metavar="PATH", help=says)
    prints.add_argument("--html", metavar="PATH", help="write the report as an HTML page")
    edits = audit.add_argument_group("edits (pip install 'dtypeguard[fix]')").add_argument
    says = "show edits that remove findings, each proven by running the program again"
    edits("--diff", action="store_true", help=says)
    edits("--fix", action="store_true", help="write the edits that are safe")
    edits("--unsafe-fixes", action="store_true", help="with --fix: write those too that change numbers or memory")
    edits("--no-prove", dest="prove", action="store_false", help="do not run the program again: edits are best guesses")
    says = "seconds after which a run to prove edits may end, if the findings were seen (default: 60)"
    edits("--prove-limit", type=_seconds, metavar="SECONDS", help=says)
    says = "seconds after which no more edits are looked for (default: 300, or as many as 16 runs of the program take)"
    edits("--search-limit", type=_seconds, metavar="SECONDS", help=says)
    rest = add("arguments", nargs=argparse.REMAINDER, metavar="argument", help="the program's arguments")
    rest.required = False  # so that it is not asked for


def _compare_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar=_MAKER, help=_MODEL)
    _takes_batch(parser, "or a list of such batches")
    low = parser.add_mutually_exclusive_group(required=True)
    low.add_argument("--dtype", help="the dtype to convert the model to: bfloat16, float16, float32")
    low.add_argument("--region", metavar="DTYPE", help="the dtype of an autocast region: bfloat16, float16")
    says = "a format of operands, as nvfp4 or mxfp8; with commas several, of which each layer gets one"
    low.add_argument("--format", type=_list, metavar="FORMATS", help=says)
    says = "find what must stay in float32 for this error, as 0.01 or 1%%; with --format, the format of each layer"
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--keep", type=share, metavar="ERROR", help=says)
    says = "with --format: find the best formats with so many bits a weight on average"
    kept.add_argument("--bits", type=float, help=says)
    add("--attention", action="store_true", help="with --format: round the products of attention too")
    _takes_loss(parser, "compare the loss; with --format, its gradients too")
    says = "with --format, and --keep or --bits: write what was found for torchao, transformers, ... as JSON"
    add("--recipe", nargs=2, action="append", default=[], metavar=("TOOL", "PATH"), help=says)
    add(
        "--max-error",
        type=share,
        metavar="ERROR",
        help="status 1 if the error is larger than this, as 0.05 or 5%%; with --keep, that with the modules in float32",
    )
    _writes(parser, "the result")


def _describe_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar=_MAKER, help=_MODEL)
    _takes_batch(parser, "call the model with it: status 1 for what a guard refuses")
    _writes(parser, "the description")


def _dryrun_options(dry: argparse.ArgumentParser) -> None:
    add = dry.add_argument
    add("model", metavar=_MAKER, help=_MODEL)
    _takes_batch(dry, "without one, values are drawn from annotations")
    says = "the dtypes of parameters and inputs, with commas (default: those of --require, or else "
    add("--dtype", type=_list, metavar="DTYPES", help=f"{says}float32,float64,float16,bfloat16)")
    says = "the dtypes of autocast regions, with commas; none for no region (default: none with --require, or else "
    add("--region", type=_list, metavar="DTYPES", help=f"{says}none,float16,bfloat16)")
    add("--device", help="whose kernels are asked: cpu, cuda, ... (default: the GPU if there is one)")
    says = "status 1 unless the model runs in these dtypes, with inputs of the same dtype: names, with commas"
    add("--require", type=_list, action="extend", metavar="DTYPES", default=[], help=says)
    _writes(dry, "the table")


def _diff_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    says = "functions that return a model, or (model, batch); or the path of a capture, or of log probabilities in JSON"
    add("programs", nargs="+", metavar=f"{_MAKER}|path", help=says)
    _takes_batch(parser, "both programs are called with it")
    says = "write what the modules of one model get and return to this file, for --against"
    add("--capture", metavar="PATH", help=says)
    add("--against", metavar="PATH", help="compare the model with this capture")
    _takes_loss(parser, "compare gradients too")
    _writes(parser, "the result")


def _manifest_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "subjects",
        nargs="+",
        metavar=f"{_MAKER}|checkpoint",
        help=f"{_MODEL}; or the path of a checkpoint",
    )
    add("--check", metavar="PATH", help="check each model and checkpoint against this file")
    _takes_batch(parser, "hold the dtypes in which modules compute too")
    add("--shapes", action="store_true", help="hold shapes too")
    add("--devices", action="store_true", help="hold devices too")
    _writes(parser, "the manifest, or what differs from it,", "; a manifest that is there keeps its comments")


# What several commands have in the same words.


def _takes_batch(parser: argparse.ArgumentParser, more: str) -> None:
    says = f"a function that returns a batch: a tensor, a tuple of positional or a dict of keyword arguments; {more}"
    parser.add_argument("--batch", metavar="package.module:make_batch", help=says)


def _takes_loss(parser: argparse.ArgumentParser, more: str) -> None:
    says = f"a function of the output, or of output and batch: {more}"
    parser.add_argument("--loss", metavar="package.module:loss", help=says)


def _prints(parser: argparse._ActionsContainer, quiet: str, more: str = "; .html and .json say the format") -> None:
    says = f"print into this file; - is standard output (default){more}"
    parser.add_argument("-o", "--output", metavar="PATH", help=says)
    parser.add_argument("-q", "--quiet", action="store_true", help=quiet)


def _writes(parser: argparse.ArgumentParser, what: str, *more: str) -> None:
    _prints(parser, "print nothing if the exit status is 0", *more)
    says = f"write {what} as JSON; for -, print JSON in place of the text"
    parser.add_argument("--json", metavar="PATH", help=says)
    parser.add_argument("--html", metavar="PATH", help=f"write {what} as an HTML page")


# --- what commands do -----------------------------------------------------------------------------------------------


def _imported(module: str) -> Callable[[argparse.Namespace], int]:
    """What a command does; its module is imported when it is run."""
    return lambda options: int(importlib.import_module(f"dtypeguard._tools.{module}").run(options))


_audit = _imported("audit.command")


def _every(text: str) -> str | int:
    if text != _POWERS and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text} is neither {_POWERS} (steps 1, 2, 4, 8 ...) nor a number of steps")
    return text if text == _POWERS else int(text)


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of steps: use 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds


def _list(text: str) -> list[str]:
    if not text.strip(", "):
        raise argparse.ArgumentTypeError(f"{text!r} names nothing")
    return [part.strip() for part in text.split(",") if part.strip()]


def _completion(options: argparse.Namespace) -> int:
    """What a shell completes with, made from the parser; torch is not loaded, neither now nor then."""
    try:
        import shtab
    except ImportError:
        raise Usage("it needs shtab: pip install 'dtypeguard[completion]'") from None
    top = parser()
    for made in commands_of(top).values():
        for action in made._actions:
            if action.metavar == PATH or action.dest == "program":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.dest in ("rules", "select", "ignore"):
                action.choices = [*FAMILIES, *(word for one in entries() for word in (one.id, one.name))]
    print(shtab.complete(top, options.shell))
    return 0


def _rules_options(parser: argparse.ArgumentParser) -> None:
    says = "an id, a name or a family: DG309, unscale-twice, DG3, DG001"
    parser.add_argument("rules", nargs="*", metavar="rule", help=says)


def _completion_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that is to complete them")


_Does = Callable[[argparse.Namespace], int]
# What runs, what adds its options, and what `--help` says of it.
_COMMANDS: dict[str, tuple[_Does, Callable[[argparse.ArgumentParser], None], str]] = {
    "audit": (_audit, _audit_options, "run a script or a module, and print its dtype mistakes"),
    "compare": (_imported("compare.command"), _compare_options,
                "measure what a lower precision costs a model, and which layers pay"),
    "describe": (_imported("describe.command"), _describe_options,
                 "say what a guard holds a model to, and whether a batch fulfils it"),
    "dryrun": (_imported("dryrun.command"), _dryrun_options, "tell in which dtypes a model runs, and what comes out"),
    "diff": (_imported("diff.command"), _diff_options,
             "find where two programs part that should compute the same, and whether it is rounding"),
    "manifest": (_imported("manifest.command"), _manifest_options,
                 "write down the dtype of every tensor that a model or a checkpoint holds, or check it"),
    "rules": (_imported("rules"), _rules_options, "list the rules and the errors of contracts, or explain some"),
    "doctor": (_imported("doctor"), lambda parser: None, "print the environment, and what is wrong with it"),
    "completion": (_completion, _completion_options, "print a script that completes commands and options in a shell"),
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
