"""What one thread asks of dtypeguard is felt by no other."""

import concurrent.futures
import contextlib
import copy
import gc
import itertools
import logging
import random
import sys
import threading
import time
import warnings
import weakref

import numpy as np
import pytest
import torch
from jaxtyping import Float32
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _python_dispatch

import dtypeguard
from dtypeguard import audit, compare, dryrun, enforce, guard
from dtypeguard.testing import check_module

F64 = torch.float64
X = torch.ones(2, 4)


class Meets(nn.Module):
    """A model in whose forward its thread waits, once, for another one."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        meet()
        y = self.norm(self.layer(x) + torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=x.dtype))
        z = self.drop(y) + F.scaled_dot_product_attention(y[None], y[None], y[None])[0]
        return z * random.random() if self.training else z


MODEL = Meets()  # which draws numbers in training
meeting = threading.local()


def meet():
    inside, done = getattr(meeting, "events", (None, None))
    if inside is not None and not inside.is_set():
        inside.set()
        assert done.wait(60)


def an_audit(**options):
    """Of a program that draws no numbers itself."""
    with audit(**options):
        copy.deepcopy(MODEL).eval()(X).sum().backward()


def a_trace_in_an_audit():
    with audit():
        torch.jit.trace(copy.deepcopy(MODEL).eval(), X, check_trace=False)


def an_export_in_an_audit():
    with audit():
        torch.export.export(copy.deepcopy(MODEL).eval(), (X,), strict=False)


TOOLS = {
    "audit": an_audit,
    "audit of values": lambda: an_audit(values=True),
    "jit.trace in an audit": a_trace_in_an_audit,
    "export in an audit": an_export_in_an_audit,
    "compare": lambda: compare(MODEL, X, dtype=torch.bfloat16),
    "dryrun": lambda: dryrun(MODEL, X, dtype=torch.bfloat16, region=None),
    "check_module": lambda: check_module(MODEL, batch=X, dtype=torch.float32, region=None),
}


@contextlib.contextmanager
def in_the_midst_of(tool):
    """In here the tool is at work in another thread, in the forward of a model; at the end it has come to its end."""
    inside, done, failed = threading.Event(), threading.Event(), []

    def work():
        meeting.events = inside, done
        try:
            tool()
        except BaseException as error:
            failed.append(error)
            inside.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert inside.wait(60)
        yield
    finally:
        done.set()
        thread.join()
    assert failed == []


def installed():
    """All that stands in torch, Python's and NumPy's generators and threads, and flags of the whole process."""
    owners = (torch, nn.Module, Tensor, F, torch.autograd, torch.random, torch.jit, torch.jit._trace, random, np.random,
              torch.optim.Optimizer, torch.amp.GradScaler, torch.autograd.profiler.record_function, threading.Thread,
              torch._dynamo.eval_frame, torch.backends.mha)  # fmt: skip
    standing = {(owner, name): thing for owner in owners for name, thing in vars(owner).items() if callable(thing)}
    flags = {name: value for name, value in vars(_python_dispatch).items() if name.startswith("_is_in")}
    return standing, flags, [*warnings.filters], torch.get_num_threads(), torch.get_default_dtype()


@enforce
def takes(x: Float32[Tensor, "2 4"]):
    return x


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


@contextlib.contextmanager
def heard():
    handler, logger = Heard(), logging.getLogger("dtypeguard")
    before = logger.disabled, logger.level  # which other libraries set
    logger.disabled = False
    logger.setLevel(logging.WARNING)  # not by the attribute: a logger remembers what it was asked
    logger.addHandler(handler)
    try:
        yield handler.records
    finally:
        logger.removeHandler(handler)
        logger.disabled = before[0]
        logger.setLevel(before[1])


def numbers():
    return torch.rand(3).tolist(), random.random(), np.random.rand(2).tolist(), torch.randint(9, (2,)).tolist()


def seed():
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)


@pytest.fixture(autouse=True)
def torchs_own_modules():
    """What torch imports when it is first needed is no change."""
    import torch._dynamo.eval_frame
    import torch.export._trace  # noqa: F401


# ---------------------------------------------------------------- warnings of torch


def warned(tool):
    """What C and Python warn their caller of: text, category, file and line, as filters of modules let it by."""
    x = torch.ones(2, 3)

    class Scores(nn.Module):
        def forward(self, scores):
            warnings.warn("for the caller", DeprecationWarning, stacklevel=2)
            return F.softmax(scores)  # three levels up

    programs = (
        lambda: torch.tensor(x),
        lambda: Scores()(x),
        lambda: F.mse_loss(x, x[:1]),
        lambda: torch.jit.trace(lambda y: y + len(y.tolist()), (x,)),
    )
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", module=__name__)
        with tool():
            for program in programs * 2:
                program()
    with warnings.catch_warnings(record=True) as once:
        warnings.simplefilter("default")
        with tool():
            for _ in range(3):
                torch.tensor(x)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module=__name__)
        with tool(), pytest.raises(UserWarning, match="copy construct"):
            torch.tensor(x)
    return [(str(one.message), one.category, one.filename, one.lineno) for one in [*shown, *once]]


def test_filters_of_warnings_are_made_of_patterns():
    """Which scikit-learn hands on to its workers."""
    found = []

    class Reads(nn.Linear):
        def forward(self, x):
            found.extend(part for row in warnings.filters for part in (row[1], row[3]) if part is not None)
            return super().forward(x)

    with audit():
        compare(Reads(2, 2), torch.ones(1, 2), dtype="bfloat16")
    assert found
    assert all(isinstance(part if isinstance(part, str) else part.pattern, str) for part in found)


@pytest.mark.parametrize("values", [None, True])
def test_warnings_of_torch_name_the_line_of_the_program(values):
    """Filters go by the module of that line, and say `error` there."""
    expected = warned(contextlib.nullcontext)
    assert len(expected) > 10
    assert warned(lambda: audit(values=values)) == expected


# What torch itself says of traces.
quiet = pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")


@quiet
@pytest.mark.parametrize("tool", TOOLS.values(), ids=list(TOOLS))
def test_a_tool_is_felt_by_no_other_thread(tool):
    dtypeguard.set_mode("lenient")
    dtypeguard.reset_casts()
    before, guarded = installed(), guard(nn.Linear(4, 4))
    seed()
    expected = numbers(), numbers()
    seed()
    with in_the_midst_of(tool):
        assert installed()[3:] == before[3:]
        drawn = [numbers()]
        with dtypeguard.mode("strict"):
            with pytest.raises(dtypeguard.DtypeError, match="argument `x` is float64"):
                takes(X.double())
            with pytest.raises(dtypeguard.DtypeError):
                guarded(X.double())
        with pytest.warns(dtypeguard.CastWarning) as said, heard() as logged:
            dtypes = [takes(X.double()).dtype for _ in range(3)]
        assert dtypes == [torch.float32] * 3
        assert len(said) == len(logged) == 1
        with pytest.warns(UserWarning, match="mine"):
            warnings.warn("mine", UserWarning, stacklevel=1)
        assert torch.zeros(1).dtype is torch.float32
        drawn.append(numbers())
    assert tuple(drawn) == expected
    assert [record.count for record in dtypeguard.casts()] == [3]
    assert installed() == before


@quiet
@pytest.mark.parametrize("other", TOOLS.values(), ids=list(TOOLS))
def test_an_audit_that_ends_in_the_midst_of_a_tool_sees_its_own_thread_and_leaves_nothing(other):
    before = installed()
    with in_the_midst_of(other), audit() as report:
        X.half()
    assert installed() == before
    assert [(finding.rule, finding.line) for finding in report.findings] == [("DG103", sys._getframe().f_lineno - 2)]
    assert report.faults == []


def test_a_tool_in_the_midst_of_an_audit_is_none_of_its_business():
    before = installed()
    with audit() as report, in_the_midst_of(TOOLS["dryrun"]):
        X.half()
        nn.Linear(4, 4)(X)
    assert [row["class"] for row in report.to_dict()["modules"]] == ["Linear"]
    assert [finding.rule for finding in report.findings] == ["DG103"]
    assert installed() == before


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
def test_audits_of_several_threads_end_in_any_order(order):
    """Each sees its own thread, as long as it lasts."""
    before = installed()
    audits = [audit() for _ in range(3)]
    begun, ends = threading.Barrier(4), [threading.Event() for _ in range(3)]

    def work(number):
        with audits[number]:
            begun.wait(60)
            ends[number].wait(60)
            for _ in range(number + 1):
                X.half()

    threads = [threading.Thread(target=work, args=[number]) for number in range(3)]
    reports = [one.report for one in audits]
    for thread in threads:
        thread.start()
    begun.wait(60)
    assert torch.tensor is not before[0][torch, "tensor"]
    for number in order:
        ends[number].set()
        threads[number].join()
    assert [[finding.count for finding in report.findings] for report in reports] == [[1], [2], [3]]
    assert installed() == before


def test_what_somebody_set_on_top_stays_and_reaches_the_original():
    real = torch.tensor
    with audit():
        ours = torch.tensor
        torch.tensor = lambda *args, **kwargs: ours(*args, **kwargs)
        theirs = torch.tensor
    try:
        assert torch.tensor is theirs
        assert torch.tensor([1.0]).tolist() == [1.0]
        with audit() as report:
            assert torch.tensor is not theirs  # ours once more, around theirs
            torch.tensor([1.0]).half()
        assert [finding.rule for finding in report.findings] == ["DG103"]
        assert torch.tensor is theirs
    finally:
        torch.tensor = ours  # as they found it
    with audit():
        pass
    assert torch.tensor is real


def test_other_threads_compile_and_script_while_an_audit_runs():
    """And an audit runs what is compiled as it is written."""

    class Net(Meets):
        def forward(self, x):
            return self.layer(x) + torch.tensor([1.0, 2.0, 3.0, 4.0])

    def script():
        return torch.jit.script(Net())(X)

    net = Net()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    for make in (lambda: compiled(X), lambda: torch.jit.trace(net, X)(X), script):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()  # its thread is there before the audit
            with warnings.catch_warnings(action="ignore"), audit() as report:  # TorchScript is deprecated
                out = pool.submit(make).result(60)
                assert torch.equal(compiled(X), net(X))
        assert out.shape == X.shape
        assert report.faults == []


# ---------------------------------------------------------------- what stays of a report


def a_step(net):
    loss = net(X).square().sum()
    loss.backward()
    torch.optim.AdamW(net.parameters()).step()


def raises(net):
    with contextlib.suppress(RuntimeError):
        net(X.double())


@pytest.mark.parametrize("values", [None, "range", True])
@pytest.mark.parametrize(
    "program", [a_step, raises, lambda net: net.bfloat16()(X.bfloat16())], ids=["step", "raises", "half"]
)
def test_a_report_keeps_nothing_of_the_program_alive(program, values):
    net = Meets()
    refs = [weakref.ref(one) for one in (*net.modules(), *net.parameters())]
    watch = audit(net, values=values)
    with watch as report:
        program(net)
    texts = str(report), report.to_json()
    del net
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
    assert (str(report), report.to_json()) == texts


# ---------------------------------------------------------------- all at once


class Serves(threading.Thread):
    """Calls a guarded model, right and wrong, and counts what it finds wrong."""

    def __init__(self, over, mode, draws):
        super().__init__()
        self.over, self.mode, self.draws = over, mode, draws
        self.model, self.calls, self.wrong, self.numbers = guard(nn.Linear(4, 4), mode=mode), 0, [], []

    def run(self):
        while not self.over.is_set():
            self.calls += 1
            if self.draws:
                self.numbers.append(numbers())
            try:
                out = self.model(X)
                repaired = self.model(X.double())
                if self.mode == "strict":
                    self.wrong.append("a wrong call passed")
                elif not torch.equal(out, repaired):
                    self.wrong.append("other numbers")
            except dtypeguard.DtypeError:
                if self.mode != "strict":
                    self.wrong.append("a call was refused")
            if torch.zeros(1).dtype is not torch.float32 or torch.get_num_threads() != 1:
                self.wrong.append("a setting of the process changed")


@quiet
@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_four_threads_serve_while_one_uses_every_tool(seconds):
    dtypeguard.reset_casts()
    over, threads = threading.Event(), torch.get_num_threads()
    torch.set_num_threads(1)
    before = installed()
    servers = [Serves(over, mode, draws=not n) for n, mode in enumerate(["strict", "lenient", "strict", "lenient"])]
    seed()
    try:
        for server in servers:
            server.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for tool in TOOLS.values():
                tool()
    finally:
        over.set()
        for server in servers:
            server.join()
        torch.set_num_threads(threads)
    assert [server.wrong for server in servers] == [[]] * 4
    assert all(server.calls > 10 for server in servers)
    repaired = sum(server.calls for server in servers if server.mode == "lenient")
    assert sum(record.count for record in dtypeguard.casts()) == repaired
    seed()
    assert [numbers() for _ in range(servers[0].calls)] == servers[0].numbers
    assert installed()[:3] == before[:3]


def everything_of_torchs():
    owners = (torch, F, nn.Module, torch.optim.Optimizer, Tensor, random, warnings)
    return {(owner, name): value for owner in owners for name, value in vars(owner).items() if callable(value)}


def interrupted(run, at):
    """Run with Ctrl-C before a line of what replaces functions and puts them back; how many lines of that ran."""
    passed, before = itertools.count(1), sys.gettrace()

    def trace(frame, event, _):
        if not frame.f_code.co_filename.endswith("_core/base/patches.py"):
            return None
        if event == "line" and next(passed) == at:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        assert at
    finally:
        sys.settrace(before)
    return next(passed) - 1


def a_small_audit():
    with audit():
        nn.Linear(4, 4)(X).sum().backward()


def a_small_comparison():
    compare(nn.Linear(4, 4), X, dtype=torch.bfloat16)


@pytest.mark.parametrize("run", [a_small_audit, a_small_comparison])
def test_an_interrupt_in_the_beginning_or_the_end_of_a_tool_leaves_nothing(run):
    run()
    before, lines = everything_of_torchs(), interrupted(run, None)
    for at in range(1, lines, lines // 6):
        assert interrupted(run, at) == at
        gc.collect()
        assert [key for key, value in everything_of_torchs().items() if before.get(key) is not value] == []
        assert _python_dispatch._len_torch_dispatch_stack() == 0
