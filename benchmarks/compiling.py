"""What is left of a check after torch.compile."""

from collections.abc import Callable
from typing import Any

import models
import peers
import torch
import torch._dynamo
from bars import Context
from peers import KEY, QUERY
from report import Row, Table, at_most, duration, exactly, times
from timing import interleave
from torch._dynamo.testing import CompileCounter

import dtypeguard


class _Counter(CompileCounter):
    """Counts graphs, and the operations whose results are used."""

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graph.graph.eliminate_dead_code()
        return super().__call__(graph, inputs)


def _graphs(function: Callable[..., Any], *calls: tuple[Any, ...], fullgraph: bool = True) -> tuple[int, int]:
    """Graphs and operations after some calls of the compiled function."""
    torch._dynamo.reset()
    counter = _Counter()
    compiled = torch.compile(function, backend=counter, fullgraph=fullgraph)
    for args in calls:
        compiled(*args)
    return counter.frame_count, counter.op_count


def _nets(width: int) -> dict[str, models.Net]:
    """The same model plain, guarded and enforced; in the same memory, so that caches treat all alike."""
    source = models.Net(width)

    def twin(cls: type[models.Net]) -> models.Net:
        net = cls(width)
        for mine, theirs in zip(net.modules(), source.modules(), strict=True):
            mine._parameters = theirs._parameters
        return net

    return {
        "plain": twin(models.Net),
        "guard": dtypeguard.guard(twin(models.Net)),
        'guard, depth="all"': dtypeguard.guard(twin(models.Net), depth="all"),
        "enforce": twin(models.EnforcedNet),
    }


def compiled(context: Context) -> Table:
    """Inductor's steady state, and the number of graphs."""
    width, batches = 256, (16, 16, 8, 24)
    nets = _nets(width)
    table = Table(
        "`torch.compile(fullgraph=True)`",
        f"Two feed-forward blocks of width {width}, batch {batches[0]}, no gradients. The four batches are "
        f"{', '.join(map(str, batches))}: the plain model is compiled again once, for any size.",
        ("candidate", "a pass (inductor), or graphs", "against plain"),
    )
    calls = tuple((torch.randn(batch, width),) for batch in batches)
    with torch.no_grad():
        once = {name: _graphs(net, calls[0]) for name, net in nets.items()}
        several = {name: _graphs(net, *calls)[0] for name, net in nets.items()}
        torch._dynamo.reset()
        steady = {name: torch.compile(net, fullgraph=True) for name, net in nets.items()}
        samples = interleave({name: (model, calls[0]) for name, model in steady.items()}, 8)
    plain = several["plain"]
    for name in nets:
        ratio = samples.ratio(name, "plain")
        bar, relative = (None, "") if name == "plain" else (at_most(1.03, times(1.03)), times(ratio))
        table.rows.append(Row(name, duration(samples.median(name)), relative, bar, ratio))
    for name, (graphs, operations) in once.items():
        what = f"{graphs} of {operations} operations"
        table.rows.append(Row(f"{name}: graphs of one call", what, "", exactly(1, "1"), graphs))
    for name, graphs in several.items():
        bar = None if name == "plain" else exactly(plain, str(plain))
        table.rows.append(Row(f"{name}: graphs of four batches", str(graphs), "", bar, graphs))
    torch._dynamo.reset()
    return table


def _outcome(function: Callable[..., Any], fullgraph: bool) -> str:
    """What becomes of a checked function in the compiler."""
    try:
        graphs, _ = _graphs(function, (QUERY, KEY), fullgraph=fullgraph)
    except Exception as error:
        return f"{type(error).__name__} on right input"
    torch._dynamo.reset()
    passed = peers.overlooked(torch.compile(function, backend="eager", fullgraph=fullgraph))
    graph = "1 graph" if graphs == 1 else f"{graphs} graphs"
    return f"{graph}, lets a wrong {', '.join(passed)} pass" if passed else f"{graph}, still checks"


def compiled_peers(context: Context) -> Table:
    """What becomes of a function that each library checks."""
    table = Table(
        "Checked functions under `torch.compile`",
        "The function of the first table with something to compute, on right input and on three wrong ones. Without "
        "`fullgraph` a check may run outside of the graph, or instead of it.",
        ("candidate", "`fullgraph=True`", "without"),
    )
    for peer in context.peers:
        work = peers.checked(peer)[1]
        table.rows.append(Row(peer.name, _outcome(work, True), _outcome(work, False)))
    torch._dynamo.reset()
    return table
