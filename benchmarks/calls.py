"""What a check costs a call that is right, eagerly."""

from typing import Any

import models
import peers
import torch
from bars import CACHE, GUARD, MS, PRE_HOOK, SUBCLASS, Context, against
from peers import BEARTYPE, KEY, OURS, QUERY
from report import Row, Table, at_least, at_most, duration, percent, times
from timing import interleave
from torch import Tensor, nn

import dtypeguard

BODY, ASSERTS = "plain body", "asserts by hand"


def eager(context: Context) -> Table:
    """Two tensors of three named axes and a result."""
    functions = {peer.name: peers.checked(peer)[0] for peer in context.peers}
    passed = {name: peers.overlooked(function) for name, function in functions.items()}
    cases = {name: (call, (QUERY, KEY)) for name, call in functions.items()}
    cases = {BODY: (peers.plain, (QUERY, KEY)), ASSERTS: (peers.asserted, (QUERY, KEY)), **cases}
    samples = interleave(cases, 12)
    cost = {name: samples.extra(name, BODY) for name in cases}
    table = Table(
        "`enforce` on a function, eager",
        '`q: Float32[Tensor, "b t d"]`, `k: Float32[Tensor, "b s d"]`, result `Float32[Tensor, "b t s"]`; the body '
        "returns a tensor made before. Overhead is over the plain body.",
        ("candidate", "overhead", "÷ asserts"),
    )
    table.rows.append(Row(f"{BODY} (its whole time)", duration(samples.median(BODY))))
    for name in list(cases)[1:]:
        faults = f" (lets a wrong {', '.join(passed[name])} pass)" if passed.get(name) else ""
        ratio = cost[name] / cost[ASSERTS]
        bar = at_most(1, times(1)) if name == OURS else None
        table.rows.append(Row(name + faults, duration(cost[name]), times(ratio), bar, ratio))
    if BEARTYPE in cost:
        ratio = cost[BEARTYPE] / cost[OURS]
        table.rows.append(Row(f"{BEARTYPE} ÷ {OURS}", "", times(ratio), at_least(25, times(25)), ratio))
    table.rows += [Row(name, f"not measured: {why}") for name, why in context.absent.items()]
    return table


def one_module(context: Context) -> Table:
    """A guard over a bare module."""
    table = Table(
        "`guard` over a bare module, one argument",
        "A module that owns a Linear and returns its input. The guard checks dtype and device, hook and wrapper only "
        "the dtype, of a parameter that they keep at hand.",
        ("candidate", "extra per call", "÷ pre-hook"),
    )
    bare, guard, hook, wrapper = "bare call", "guard", "forward pre-hook", "wrapper module"
    modules: dict[str, nn.Module] = {
        bare: models.Pass(),
        guard: dtypeguard.guard(models.Pass()),
        hook: models.hooked(models.Pass()),
        wrapper: models.Wrapper(models.Pass()),
    }

    def measure(where: str, x: Tensor) -> None:
        samples = interleave({name: (module, (x,)) for name, module in modules.items()}, 4)
        extra = {name: samples.extra(name, bare) for name in modules}
        table.rows.append(Row(f"{bare}{where} (its whole time)", duration(samples.median(bare))))
        table.rows.extend(context.absolute(f"{guard}{where}", extra[guard], GUARD))
        table.rows.append(against(f"{guard}{where}, against the {hook}", extra[guard] / extra[hook], GUARD, PRE_HOOK))
        for name in (hook, wrapper):
            table.rows.append(Row(f"{name}{where}", duration(extra[name]), times(extra[name] / extra[hook])))

    x = torch.zeros(4, 8)
    measure("", x)
    with torch.autocast("cpu", torch.bfloat16):
        measure(", bf16 autocast, float32 input", x)
        measure(", bf16 autocast, bfloat16 input", x.bfloat16())
    return table


def _batch(model: nn.Module) -> int:
    """The batch with which a pass takes about 1.5 ms."""
    took: dict[int, float] = {}
    for batch in (1, 2, 4, 8, 16, 32, 64, 128):
        took[batch] = interleave({"pass": (model, (torch.zeros(batch, models.WIDTH),))}, 0.02).median("pass")
        if took[batch] > 2 * MS:
            break
    return min(took, key=lambda batch: abs(took[batch] - 1.5 * MS))


def many_layers(context: Context) -> Table:
    """48 guarded layers."""
    stacks = models.stacks()
    table = Table(
        f"{models.LAYERS} guarded layers",
        f'`Linear({models.WIDTH}, {models.WIDTH})` and ReLU in turn, `depth="all"`, no gradients; the batch is the '
        "one whose pass is nearest to 1.5 ms. Under autocast the layers after the first get bfloat16.",
        ("candidate", "a pass", "against unguarded"),
    )

    def measure(where: str, limit: float) -> None:
        x = torch.zeros(_batch(stacks["unguarded"]), models.WIDTH)
        samples = interleave({name: (model, (x,)) for name, model in stacks.items()}, 6)
        for name in stacks:
            ratio = samples.ratio(name, "unguarded")
            relative = "" if name == "unguarded" else percent(ratio)
            bar = at_most(1 + limit, f"{100 * limit:+.0f} %") if name == "guard" else None
            what = f"{name}{where}, batch {len(x)}"
            table.rows.append(Row(what, duration(samples.median(name)), relative, bar, ratio))

    with torch.no_grad():
        measure("", 0.04)
        with torch.autocast("cpu", torch.bfloat16):
            measure(", bf16 autocast", 0.07)
    return table


def cached_tuples(context: Context) -> Table:
    """A key/value cache as an argument."""
    x = torch.zeros(4, 8)
    past = tuple((torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 2, 8)) for _ in range(48))
    cases: dict[str, Any] = {
        "bare": (models.Cached(), (x, past)),
        "guard": (dtypeguard.guard(models.Cached()), (x, past)),
    }
    samples = interleave(cases, 2)
    table = Table(
        "A key/value cache as an argument",
        "48 tuples of two tensors, not annotated; every tensor's dtype and device is checked.",
        ("candidate", "extra per call", ""),
    )
    table.rows = context.absolute("guard", samples.extra("guard", "bare"), CACHE)
    return table


def side_input(context: Context) -> Table:
    """A float32 timestep beside a bfloat16 model."""
    x, t = torch.zeros(4, 8, dtype=torch.bfloat16), torch.tensor([947.54, 12.25])
    bare, guarded = models.Cached().to(torch.bfloat16), dtypeguard.guard(models.Cached().to(torch.bfloat16))
    guarded(x, t)  # the first call looks for what is to be checked inside
    cases: dict[str, Any] = {
        "bare": (bare, (x, t)),
        "guard": (guarded, (x, t)),
        "guard, both right": (dtypeguard.guard(models.Cached().to(torch.bfloat16)), (x, x)),
    }
    samples = interleave(cases, 2)
    table = Table(
        "A side input",
        "A float32 argument beside one that has the parameters' dtype, from the second call on.",
        ("candidate", "extra per call", ""),
    )
    table.rows = [Row(name, duration(samples.extra(name, "bare"))) for name in cases if name != "bare"]
    return table


class Tagged(Tensor):
    """A user's subclass: every question to it goes through the default `__torch_function__`."""


def subclasses(context: Context) -> Table:
    """A tensor subclass as an argument."""
    query, key = QUERY.as_subclass(Tagged), KEY.as_subclass(Tagged)
    x = torch.zeros(4, 8).as_subclass(Tagged)
    functions = {peer.name: peers.checked(peer)[0] for peer in context.peers if peer.name == OURS}
    cases: dict[str, Any] = {
        BODY: (peers.plain, (query, key)),
        ASSERTS: (peers.asserted, (query, key)),
        "enforce, two of them": (functions[OURS], (query, key)),
        "bare module": (models.Pass(), (x,)),
        "guard": (dtypeguard.guard(models.Pass()), (x,)),
    }
    samples = interleave(cases, 4)
    table = Table(
        "A tensor subclass as an argument",
        "`class Tagged(Tensor)` with the default `__torch_function__`, through which one `x.shape` takes microseconds.",
        ("candidate", "extra per call", ""),
    )
    table.rows.append(Row(ASSERTS, duration(samples.extra(ASSERTS, BODY))))
    table.rows.append(Row("enforce, two of them", duration(samples.extra("enforce, two of them", BODY))))
    table.rows += context.absolute("guard", samples.extra("guard", "bare module"), SUBCLASS)
    return table
