"""How often a dry run is right, and what it costs: PyTorch's operations and modules, architectures of Hugging Face."""

import logging
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bars import Context
from report import Row, Table, at_least, at_most

import dtypeguard

TESTS = Path(__file__).parents[1] / "tests"
RIGHT = 0.99
CELL, MEMORY, MATRIX = 15.0, 2.0, 60.0  # seconds, GB, seconds
REGIONS = (None, torch.bfloat16)
WRONG = ("missed", "false", "dtype", "unknown")


def verdicts(context: Context) -> Table:
    """Cells of dry runs against eager PyTorch."""
    sys.path[:0] = [str(TESTS), str(TESTS / "integration")]
    logging.disable(logging.ERROR)  # FakeTensor logs every refusal
    table = Table(
        "`dryrun`",
        'Verdicts that agree with eager PyTorch on a CPU, dtypes of outputs included; "unknown" is not right. '
        "Operations: one sample of each in `op_db`, its first floating tensor as a parameter on meta, the others as "
        "inputs on meta, in float32, float64, float16, bfloat16. Modules: samples of each in `module_db`, and models "
        "of Hugging Face, in 48 cells, or 12 without a floating input; with the values that they have, and with all "
        "weights and floating inputs on meta. Wrong: a refusal missed, one that is none, another dtype, unknown.",
        ("what", "right", "of which wrong"),
    )  # fmt: skip
    kinds = operations()
    whole = (sum((found[n] for found in kinds.values()), Counter[str]()) for n in (0, 1))
    for kind, (ours, fakes) in {"all": tuple(whole), **kinds}.items():
        table.rows.append(rate(f"operations, {kind}", ours, True))
        table.rows.append(rate(f"operations, {kind}, FakeTensor alone", fakes, False))
    for values in (True, False):
        how = "" if values else ", on meta"
        table.rows.append(rate(f"`module_db`{how}", modules(values), True))
        for name, found in architectures(values).items():
            table.rows.append(rate(f"{name}{how}", found, True))
    for name, size, limit in (("llama", 48, CELL), ("bert", 48, MATRIX)):
        seconds, memory = map(float, child(name).split())
        if name == "llama":
            each = seconds / size
            table.rows.append(
                Row("Llama of 7B width, two layers: a cell", f"{each:.2f} s", "", at_most(limit, "15 s"), each)
            )
            bar = at_most(MEMORY, "2 GB")
            table.rows.append(Row("the same, memory of the process that it added", f"{memory:.2f} GB", "", bar, memory))
        else:
            text = "BERT of 12 layers, 32 x 512 tokens: 48 cells"
            table.rows.append(Row(text, f"{seconds:.1f} s", "", at_most(limit, "60 s"), seconds))
    return table


def rate(what: str, found: Counter[str], bar: bool) -> Row:
    """The share of verdicts that agree."""
    total = sum(found.values())
    share = found["agree"] / total
    wrong = ", ".join(f"{found[kind]} {kind}" for kind in WRONG if found[kind]) or "0"
    return Row(what, f"{share:.2%} of {total}", wrong, at_least(RIGHT, "99 %") if bar else None, share)


def operations() -> dict[str, tuple[Counter[str], Counter[str]]]:
    """Of `op_db`, by kind of cell: ours, and FakeTensor's."""
    import dryrun_cases as cases
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, tuple[Counter[str], Counter[str]]] = {}
    for op in op_db:
        for model, inputs in cases.operations(op, 1) if torch.float32 in op.dtypes else ():
            ghost, ghosts, _ = cases.without_values(model, inputs, {})
            for cell in dtypeguard.dryrun(ghost, tuple(ghosts), device="cpu", region=REGIONS):
                mixed = "one dtype" if cell.parameters in (None, cell.inputs) else "mixed dtypes"
                ours, fakes = found.setdefault(mixed + (", autocast" if cell.region else ""), (Counter(), Counter()))
                truth = cases.eager(model, inputs, {}, cell)
                ours[cases.judged(cell, truth)] += 1
                fakes[cases.likeness(cases.fake(model, inputs, cell), truth)] += 1
    return found


def modules(values: bool) -> Counter[str]:
    """Of `module_db`: some samples of each module, in eval and training."""
    import dryrun_cases as cases

    total: Counter[str] = Counter()
    for model, args, kwargs in module_samples():
        total += cases.tally(cases.compared(model, args, kwargs, values=values))
    return total


def module_samples() -> Iterator[tuple[Any, ...]]:
    """A few samples of each module that compute in float32."""
    import dryrun_cases as cases
    from torch.testing._internal.common_modules import module_db

    cell = dtypeguard.results.DryrunCell(None, None, None)
    for info in module_db:
        for training in (False, True):
            torch.manual_seed(1)
            random.seed(1)
            samples = info.module_inputs_func(info, "cpu", torch.float32, False, training)
            for sample in samples[:: max(1, len(samples) // 3)]:
                made, given = sample.constructor_input, sample.forward_input
                model = info.module_cls(*made.args, **made.kwargs).train(training)
                if info.is_lazy:
                    model(*given.args, **given.kwargs)
                if cases.eager(model, given.args, given.kwargs, cell).runs:
                    yield model, given.args, given.kwargs


def architectures(values: bool) -> dict[str, Counter[str]]:
    """By architecture."""
    import dryrun_cases as cases
    from architectures import ARCHITECTURES, drawn

    found = {}
    for name, architecture in ARCHITECTURES.items():
        torch.manual_seed(1)
        model, inputs = architecture.build().eval(), architecture.inputs(drawn(torch.float32))
        found[name] = cases.tally(cases.compared(model, (), inputs, values=values))
    return found


def child(name: str) -> str:
    """Seconds and GB of a large model in a process of its own."""
    out = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True).stdout
    return out.splitlines()[-1]


def large(name: str) -> None:
    """Print the seconds of 48 cells, and the GB that they added to the process."""
    import transformers

    if name == "llama":
        sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 2}
        with torch.device("meta"):
            model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=32000))
        inputs = {"inputs_embeds": torch.randn(1, 2, 4096)}
    else:
        model = transformers.BertModel(transformers.BertConfig())
        mask = torch.ones(32, 512, dtype=torch.int64)
        inputs = {"inputs_embeds": torch.randn(32, 512, 768), "attention_mask": mask}
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    assert len(dtypeguard.dryrun(model, dict(inputs), device="cpu").cells) == 48
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(took, (after - before) / 2**20)


if __name__ == "__main__":
    large(sys.argv[1])
