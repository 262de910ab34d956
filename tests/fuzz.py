"""The differential test on many more cases: `make fuzz`, or `python tests/fuzz.py CASES SEED`."""

import sys
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

CHUNK = 2000


def run_chunk(number: int) -> Counter[str]:
    """Two thousand cases of one seed; an AssertionError carries the smallest case that fails."""
    from differential import enforce_says, jaxtyping_says
    from hypothesis import HealthCheck, given, seed, settings
    from strategies import cases

    verdicts: Counter[str] = Counter()

    @seed(number)
    @settings(max_examples=CHUNK, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def run(case) -> None:
        theirs = jaxtyping_says(case)
        verdicts[theirs] += 1
        assert enforce_says(case) == theirs

    run()
    return verdicts


def main(count: int, first_seed: int) -> None:
    chunks = -(-count // CHUNK)
    seeds = range(first_seed * 1_000_000, first_seed * 1_000_000 + chunks)
    verdicts: Counter[str] = Counter()
    with get_context("spawn").Pool(2, maxtasksperchild=5) as pool:
        for done, counts in enumerate(pool.imap(run_chunk, seeds), 1):
            verdicts += counts
            if done % 10 == 0 or done == chunks:
                cases = f"{sum(verdicts.values()):>8} cases, seeds {seeds[0]}..{seeds[done - 1]}"
                print(f"{cases}: {dict(verdicts)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
