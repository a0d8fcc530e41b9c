"""``make chaos``: kill, fill the disk, run two at once; the same bytes or one clear line.

Ends with a table of what was done and with status 1 where anything did not hold.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.trials import (
    Trouble,
    fill_disk,
    kill_dvc,
    kill_randomly,
    kill_serving,
    run_two,
    whole_project,
)

TRIALS = ("kills", "serve", "disk", "two", "dvc")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="SIGKILLs over all commands")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=TRIALS, action="append")
    options = parser.parse_args()
    chosen = options.only or TRIALS
    # A shell starts what it puts into the background deaf to SIGINT, and all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    troubles: list[Trouble] = []
    with tempfile.TemporaryDirectory(prefix="hcl-chaos-") as folder:
        reference = whole_project(Path(folder) / "whole")
        for name, trial in (
            ("kills", lambda: kill_randomly(reference, options.kills, options.seed)),
            ("serve", lambda: kill_serving(reference, options.kills // 5, options.seed)),
            ("disk", lambda: fill_disk(reference)),
            ("two", lambda: run_two(reference)),
            ("dvc", lambda: kill_dvc(Path(folder) / "dvc", options.kills // 10, options.seed)),
        ):
            if name in chosen:
                for line, found in trial():
                    print(line, *(f"  {trouble}" for trouble in found), sep="\n", flush=True)
                    troubles += found
    print(f"{len(troubles)} did not hold" if troubles else "All held.")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
