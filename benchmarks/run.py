"""Measure dtypeguard against its bars and its peers; print the tables and write them to RESULTS.md.

Usage: python benchmarks/run.py [topic ...]
"""

import logging
import sys
import time
import warnings
from pathlib import Path

import peers
import torch
from auditing import auditing
from bars import Context, pace
from calls import cached_tuples, eager, many_layers, one_module, side_input, subclasses
from comparing import comparing, comparing_costs, keeping, searching
from compiling import compiled, compiled_peers
from formats import formats_choices, formats_costs, formats_ranking
from holding import holding
from measuring import measuring
from parting import parting
from real import real_models
from repairing import repairs
from report import machine
from startup import decorating, importing
from valuing import valuing
from verdicts import verdicts
from watching import watching

import dtypeguard

TOPICS = {
    topic.__name__: topic
    for topic in (
        pace,
        eager,
        one_module,
        many_layers,
        compiled,
        compiled_peers,
        decorating,
        importing,
        repairs,
        cached_tuples,
        side_input,
        subclasses,
        watching,
        measuring,
        auditing,
        valuing,
        comparing,
        keeping,
        searching,
        comparing_costs,
        formats_ranking,
        formats_choices,
        formats_costs,
        real_models,
        verdicts,
        holding,
        parting,
    )
}
RESULTS = Path(__file__).parent / "RESULTS.md"
HEAD = """\
# Benchmarks

Written by `make bench`. Within a topic all candidates run in turn, on one thread, in many short rounds. Times are
medians over the rounds; differences and ratios are medians of each round's own. A bar is what dtypeguard is held to.
"""


def main(names: list[str]) -> int:
    """Run the topics named, after the machine's pace; or all of them, and write the results down."""
    if strangers := [name for name in names if name not in TOPICS]:
        print(f"no topic {strangers[0]!r}: the topics are {', '.join(TOPICS)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    torch._logging.set_logs(all=logging.CRITICAL)  # type: ignore[attr-defined]  # peers make Dynamo talk
    logging.getLogger("dtypeguard").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore", dtypeguard.CastWarning)
    warnings.filterwarnings("ignore", module="tensor_shape_assert|dltype|typeguard")
    dtypeguard.set_mode("lenient")
    context = Context(*peers.load())
    parts = [HEAD, machine(peers.PACKAGES)]
    print("\n".join(parts), flush=True)
    for name in dict.fromkeys(("pace", *(names or TOPICS))):
        start = time.perf_counter()
        parts.append(f"\n{TOPICS[name](context).markdown()}")
        print(parts[-1], flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if not names:
        RESULTS.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
