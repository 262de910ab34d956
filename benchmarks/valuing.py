"""What an audit costs that looks at values: time of a training step, and memory of the shadows."""

from typing import Any

import torch
from auditing import EARLY, Setup, encoder, timed, toy
from bars import Context
from report import Row, Table, at_most, duration, times
from timing import Samples

import dtypeguard

ROUNDS, STEPS = 8, 3
RANGE, SHADOW, MEMORY = 1.3, 5.0, 3.0


def steps(case: Setup) -> Samples:
    """ns of a step, bare and in audits of both kinds, in turn, after the early steps."""
    model, optimizer, scaler, step = case
    ways: dict[str, Any] = {"bare": None, "range": "range", "shadow": True}
    rounds: dict[str, list[float]] = {name: [] for name in ways}

    for number in range(ROUNDS):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            if name == "bare":
                rounds[name].append(timed(step, STEPS))
            else:
                with dtypeguard.audit(model, optimizer, scaler, values=ways[name]):
                    rounds[name].append(timed(step, STEPS))
    return Samples(rounds)


def held(case: Setup, count: int) -> tuple[int, int]:
    """Bytes of the shadows after so many steps, and of the tensors that they belong to."""
    model, optimizer, scaler, step = case
    audit = dtypeguard.audit(model, optimizer, scaler, values=True)
    with audit:
        for _ in range(count):
            step()
        memory: Any = audit._recorder.values.shadow.memory
        return memory.size, sum(one.size for one in memory.all())


def peak(case: Setup) -> float:
    """The most that shadows and their tensors had together in a step, of what the tensors alone had then."""
    model, optimizer, scaler, step = case
    most = 1.0
    audit = dtypeguard.audit(model, optimizer, scaler, values=True)
    with audit:
        step()
        memory: Any = audit._recorder.values.shadow.memory
        lives = {id(t): t.untyped_storage().nbytes() for t in model.parameters()}

        def look(*_: Any) -> None:
            nonlocal most
            live = sum(one.size for one in memory.all()) + sum(lives.values())
            most = max(most, (memory.size + live) / live)

        handles = [module.register_forward_hook(look) for module in model.modules()]
        step()
        for handle in handles:
            handle.remove()
    return most


def valuing(context: Context) -> Table:
    """A training step in an audit that looks at values."""
    table = Table(
        "`audit(values=...)`",
        f"Training steps in turn without an audit, with `values=\"range\"` and with `values=True`, {ROUNDS} times: the "
        f"`TransformerEncoder` and the toy of the table above. The first {EARLY} steps of each audit are not timed. "
        "Memory: what shadows and tensors take together, of what tensors take, at its peak in a forward; and the "
        "shadows that are left after so many steps of the toy.",
        ("what", "here", "against no audit"),
    )  # fmt: skip
    for what, case, bars in (
        ("encoder", encoder(), True),
        ("encoder, bfloat16 autocast", encoder(torch.bfloat16), True),
        ("toy", toy(), False),
    ):
        samples = steps(case)
        for name, limit in (("range", RANGE), ("shadow", SHADOW)):
            ratio = samples.ratio(name, "bare")
            bar = at_most(limit, times(limit)) if bars else None
            table.rows.append(
                Row(f"a step of the {what}, {name}", duration(samples.median(name)), times(ratio), bar, ratio)
            )
    most = peak(encoder())
    table.rows.append(Row("memory at its peak, encoder", times(most), "", at_most(MEMORY, times(MEMORY)), most))
    first = held(toy(), 10)[0]
    for count in (10, 1000):
        size = held(toy(), count)[0]
        table.rows.append(
            Row(f"shadows after {count:,} steps", f"{size / 1024:.1f} KiB", "", at_most(first, "the first"), size)
        )
    return table
