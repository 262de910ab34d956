"""The magic of notebooks: `%load_ext dtypeguard.integrations.notebook`, then `%%dtypeguard --fix` at the top of a cell.

The cell runs under an audit, whose report stands below it. With `--fix` its source is replaced by the mended one, with
`--diff` edits are shown. A cell cannot be run again by itself, so its edits are best guesses.

Example:
    %load_ext dtypeguard.integrations.notebook

    %%dtypeguard --fix
    x = torch.ones(3)
    x.half()
"""

import argparse
import linecache
import shlex
import types
from typing import Any

from .._core.base.pyproject import near
from .._show.report.edits import Edit
from .._show.report.report import AuditReport
from .._tools.audit.audit import audit
from .._tools.fix.edits import searched
from .._tools.fix.program import Run


def load_ipython_extension(shell: Any) -> None:
    """Register `%%dtypeguard`; IPython calls it."""
    shell.register_magic_function(types.MethodType(_audited, shell), "cell", "dtypeguard")


def unload_ipython_extension(shell: Any) -> None:
    """Take `%%dtypeguard` away; IPython calls it."""
    shell.magics_manager.magics["cell"].pop("dtypeguard", None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("%%dtypeguard", exit_on_error=False, description="run a cell under an audit")
    add = parser.add_argument
    add("--values", action="store_true", help="run each operation once more in a wider dtype")
    add("--ignore", action="append", default=[], metavar="RULES", help="leave out these rules")
    add("--diff", action="store_true", help="show edits")
    add("--fix", action="store_true", help="replace the cell's source by the mended one")
    add("--unsafe-fixes", action="store_true", help="with --fix: those too that change numbers or memory")
    return parser


def _audited(shell: Any, line: str, cell: str) -> AuditReport | None:
    """Run a cell under an audit."""
    parser = _parser()
    try:
        options, unknown = parser.parse_known_args(shlex.split(line))
    except (argparse.ArgumentError, SystemExit) as error:
        if isinstance(error, argparse.ArgumentError):
            print(f"%%dtypeguard: {error}")
        return None
    if unknown:
        known = [name for action in parser._actions for name in action.option_strings]
        print(f"%%dtypeguard: unrecognized arguments: {' '.join(unknown)}{near(unknown[0], known)}")
        return None
    with audit(values=options.values, ignore=options.ignore) as report:
        ran = shell.run_cell(cell)
    if options.diff or options.fix:
        edits = _edits(report, cell, not options.fix or options.unsafe_fixes, str(ran.error_in_exec or ""))
        for edit in edits:
            kind = "safe" if edit.safe else "not safe: changes numbers or memory"
            print(f"{edit.does} ({kind}, not proven: a cell does not run again by itself)\n{edit.diff}")
        if options.fix and edits:
            mended = next(iter(edits[-1].after.values())).decode()
            shell.set_next_input(f"%%dtypeguard {line}\n{mended}", replace=True)
    return report


def _edits(report: AuditReport, cell: str, unsafe: bool, error: str) -> list[Edit]:
    """Edits of the cell; other cells and files stay as they are."""
    text = cell if cell.endswith("\n") else f"{cell}\n"

    def own(file: str) -> bool:
        return "".join(linecache.getlines(file)) == text

    return searched(Run(list(report.findings), error=error), None, own, unsafe, data=lambda file: text.encode())[0]
