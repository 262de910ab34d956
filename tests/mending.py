"""Programs that are run in this process with edits, where `dtypeguard audit --fix` takes another one for each run."""

import contextlib
import io
import linecache
import traceback

import torch

import dtypeguard
from dtypeguard._tools.fix.edits import searched
from dtypeguard._tools.fix.left import Leaving
from dtypeguard._tools.fix.program import Run
from dtypeguard._tools.fix.source import decode


class Mended:
    """A program, the edits that help, and what it is with them.

    Attributes:
        first: the run without edits.
        last: the run with all of them.
        edits: the edits, the safe ones first.
        data: the bytes of the file with all of them.
    """

    def __init__(self, path, data, values=None, unsafe=True):
        self.path, self.values = path, values
        path.write_bytes(data)
        self.first = self.run({})
        file = str(path)
        self.edits, search = searched(self.first, self.run, file.__eq__, unsafe, data=lambda _: data)
        assert search.faults == []
        self.last = search.last
        self.data = self.edits[-1].after[file] if self.edits else data

    def run(self, texts, values=None, operations=0):
        data = self.path.read_bytes()
        text = texts.get(str(self.path), decode(data)[0])
        mended = text.encode(decode(data)[1])
        self.path.write_bytes(mended)
        linecache.cache.pop(str(self.path), None)
        state = torch.get_rng_state(), torch.get_default_dtype()
        torch.manual_seed(0)
        audit, out, error, raised = (
            dtypeguard.audit(values=self.values if values is None else values),
            io.StringIO(),
            "",
            (),
        )
        leaving = Leaving()
        merged = audit.report._recorder.findings.merged = set()
        results = audit.report._recorder.lineage.results = {}
        followed = audit.report._recorder.values
        try:
            with contextlib.redirect_stdout(out), leaving, audit:
                exec(compile(mended, self.path, "exec"), {"__name__": "__main__", "__file__": str(self.path)})
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
            frames = traceback.extract_tb(caught.__traceback__)
            raised = tuple((frame.filename, frame.lineno) for frame in frames if frame.filename == str(self.path))
        finally:
            casts = tuple(audit.report._recorder.findings.conversions())
            self.path.write_bytes(data)
            torch.set_rng_state(state[0])
            torch.set_default_dtype(state[1])
        assert audit.report.faults == []
        lines = out.getvalue().splitlines()
        found, files = list(audit.report.findings), (str(self.path),)
        return Run(
            found,
            int(bool(error)),
            error,
            raised,
            lines,
            files=files,
            casts=casts,
            merged=tuple(merged),
            results=results,
            errors=followed and followed.errors(),
            leaving=followed and dict(followed.leaving),
            left=leaving.samples,
            steps=leaving.steps,
        )
