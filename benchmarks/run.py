"""Measure dtypeguard against its bars and its peers: prints the tables and writes them to RESULTS.md.

Usage: python benchmarks/run.py [topic ...]
"""

import logging
import sys
import time
import warnings
from pathlib import Path

import peers
import report
import torch
from topics import TOPICS, Context

import dtypeguard

RESULTS = Path(__file__).parent / "RESULTS.md"
HEAD = """\
# Benchmarks

Written by `make bench`. Within a topic all candidates run in turn, one thread, in many short rounds; figures are medians
over the rounds, differences and ratios medians of each round's own. A bar is what dtypeguard is held to.
"""


def main(names: list[str]) -> int:
    """Run the topics named, or all of them; only a full run is written down."""
    known = {topic.__name__: topic for topic in TOPICS}
    if strangers := [name for name in names if name not in known]:
        print(f"no topic {strangers[0]!r}: the topics are {', '.join(known)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    dtypeguard.set_mode("lenient")
    warnings.simplefilter("ignore", dtypeguard.CastWarning)
    warnings.filterwarnings("ignore", module="tensor_shape_assert|dltype|typeguard")
    logging.getLogger("dtypeguard").setLevel(logging.ERROR)
    present, absent = peers.load()
    context = Context(present, absent)
    parts = [HEAD, report.machine(peers.PACKAGES)]
    print("\n".join(parts), flush=True)
    for name in names or known:
        start = time.perf_counter()
        parts.append(f"\n{known[name](context).markdown()}")
        print(parts[-1], flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if not names:
        RESULTS.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
