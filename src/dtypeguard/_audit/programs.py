"""What an audit prints of the program beside a rule, for its page."""

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import torch

from .._base.quiet import quiet
from .._report.causes import causes_of
from .._report.text import Style, paragraphs
from .audit import audit

_WATCH = re.compile(r"^.*\bdtypeguard\.amp\.watch\(.*\n", re.MULTILINE)
_WIDTH = 88


def printed(module: Any) -> str:
    """What an audit prints of a rule's first program; nothing where that takes more than one process."""
    rule, program = module.RULE, module.BAD[0]
    source = _WATCH.sub("\n", program.source)  # what `amp.watch` looks for, an audit finds by itself
    dtype, state, folder = torch.get_default_dtype(), torch.get_rng_state(), os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        file = Path(name, "program.py").resolve()
        file.write_text(source)
        torch.manual_seed(0)
        running = audit(rules=rule.id, values=rule.id.startswith("DG9"))
        silent = contextlib.redirect_stdout(None), quiet()
        try:
            with contextlib.suppress(Exception), silent[0], silent[1], running:
                exec(compile(source, file, "exec"), {"__name__": "__main__", "__file__": str(file)})
            found = [finding for finding in running.report.findings if finding.line == program.at]
            return "\n".join(paragraphs(causes_of(found), Style(width=_WIDTH)))
        finally:
            os.chdir(folder)
            torch.set_default_dtype(dtype)
            torch.set_rng_state(state)
