"""Writes the tables in docs/explanation/cost.md: what a tool costs, from benchmarks/RESULTS.md.

    python docs/cost.py

tests/test_explanation.py compares the page with the results.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "cost.md"
SMALL, COMPARE = "Models of many small operations", "What `compare` costs"

# Of each table: what is measured, the topic and the row of the results, and how its first two figures are said.
TABLES = {
    "contracts": [
        ("`enforce`, a right call with two tensors", "`enforce` on a function, eager", "dtypeguard",
         "{0} more; {1} of asserts by hand"),
        ("`guard`, a right call", "`guard` over a bare module, one argument", "guard", "{0} more"),
        ("a forward pre-hook that checks less", "`guard` over a bare module, one argument", "forward pre-hook",
         "{0} more"),
        ("`guard`, a right call under autocast", "`guard` over a bare module, one argument",
         "guard, bf16 autocast, bfloat16 input", "{0} more"),
        ("a pass through 48 guarded layers", "48 guarded layers", "guard, batch 4", "{1}"),
        ("a guarded model, compiled", "`torch.compile(fullgraph=True)`", "guard", "{1} of the plain model"),
        ("`guard`, a call that is repaired", "Repairs", "guard", "{0} more than the cast by hand"),
        ("`guard(state=)`, a right call", "`manifest` of 1,000 parameters",
         "`guard(model, state=)`, more than `guard(model)` a call", "{0} more than without `state=`"),
        ("to decorate 1,000 functions", "Decorating 1,000 functions", "dtypeguard",
         "{0}; {1} of jaxtyping + beartype"),
        ("to import it, after torch", "Import after torch", "dtypeguard", "{0}; {1} of jaxtyping + beartype"),
    ],
    "training": [
        ("`amp.watch`, a step of SGD", "`amp.watch`, 200 parameters", "SGD", "{1}"),
        ("`amp.watch`, a step of Adam", "`amp.watch`, 200 parameters", "Adam", "{1}"),
        ("`audit`, a step of an encoder", "`audit`", "a step of the encoder", "{1}"),
        ("`audit`, a step of a toy", "`audit`", "a step of the toy", "{1}"),
        ("`audit`, memory after 1,000 steps", "`audit`", "kept after 1,000 steps", "{0}"),
        ("`audit`, a step of a small Llama", SMALL, "Llama, audit, between looks", "{1} ({0})"),
        ('`audit(values="range")`, the same', SMALL, "Llama, range, between looks",
         "{1} ({0})"),
        ("`audit(values=True)`, the same", SMALL, "Llama, True, between looks", "{1} ({0})"),
        ("`audit(values=True)`, a step that is looked at: 1, 2, 4, 8 ...", SMALL, "Llama, True",
         "{1} ({0})"),
        ('`audit(values=True, every="2^k")`, 1,000 steps of it', SMALL, "Llama, True, every 2^k",
         "{0}"),
        ("`audit(values=True)`, a step of a small ResNet", SMALL, "ResNet, True, between looks",
         "{1} ({0})"),
    ],
    "tools": [
        ("`compare`, an encoder: time", COMPARE, "encoder, bfloat16: time", "{1} of a forward and backward in float32"),
        ("`compare`, the same: memory", COMPARE, "encoder, bfloat16: memory",
         "{1} of what a forward saves for its backward"),
        ("`compare`, a ResNet: time", COMPARE, "ResNet, bfloat16: time", "{1} of a forward and backward in float32"),
        ("`compare(format=)`, an encoder, for MXFP8, NVFP4, int8", "What `compare(format=)` costs",
         "TransformerEncoder", "{0}"),
        ("`dryrun`, a cell of a small Llama", SMALL, "Llama, dryrun, a cell", "{0} of a forward"),
        ("`manifest` of 1,000 parameters", "`manifest` of 1,000 parameters", "`manifest(model)`, linear layers",
         "{0}"),
        ("`lock.check(model)`, the same", "`manifest` of 1,000 parameters", "`lock.check(model)`, linear layers",
         "{0}"),
    ],
}  # fmt: skip


def measured() -> dict[tuple[str, str], list[str]]:
    """The cells of every row of the results, by topic and row."""
    topic, cells = "", {}
    for line in (ROOT / "benchmarks" / "RESULTS.md").read_text().splitlines():
        if line.startswith("## "):
            topic = line.removeprefix("## ")
        elif line.startswith("| "):
            name, *rest = (cell.strip() for cell in line.strip("|").split(" | "))
            cells[topic, name.strip("| ")] = rest
    return cells


def table(name: str) -> str:
    """The rows of one table of the page."""
    found = measured()
    lines = ["| what | costs |", "| --- | --- |"]
    lines += [f"| {what} | {says.format(*found[topic, row])} |" for what, topic, row, says in TABLES[name]]
    return "\n".join(lines)


def written(text: str) -> str:
    """The page with its tables."""
    return "".join(_parts(text))


def _parts(text: str) -> Iterator[str]:
    for name in TABLES:
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = text.partition(start)
        yield f"{before}{start}\n{table(name)}\n\n{end}"
        text = rest.partition(end)[2]
    yield text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
