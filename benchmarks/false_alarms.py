"""`python -m benchmarks.false_alarms [SEEDS] [PROCESSES] [NAME;NAME] [FIRST SEED]`.

What the suite says of right kernels.
"""

import os
import sys
import time

from moe_ref.conformance.mutants import CORRECT, false_alarms

BLOCK = 20  # seeds between two lines of progress


def main() -> None:
    """Run every correct variant over many seeds."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    processes = int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count() or 1
    names = sys.argv[3].split(";") if len(sys.argv) > 3 else []
    chosen = [each for each in CORRECT if not names or each.name in names]
    begin = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    start, found = time.monotonic(), []
    for first in range(begin, seeds, BLOCK):
        block = range(first, min(first + BLOCK, seeds))
        found += false_alarms(chosen, seeds=block, at_once=processes)
        spent = time.monotonic() - start
        done = f"{len(chosen)} variants, seeds {begin} to {block[-1]}"
        print(f"{done}: {len(found)} alarms, {spent:.0f} s")
        for seed, result in found:
            print(f"  seed {seed}: {result.implementation} {result.id} {result.detail}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
