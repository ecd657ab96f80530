"""``python -m tests.simulation``: many seeds, one seed, a broken rule, or the names of the rules that can be broken."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.simulation.campaign import Caught, Passed, hunt, one_seed
from tests.simulation.changes import CHANGES
from tests.simulation.clients import SHARES
from tests.simulation.growth import GROWS
from tests.simulation.kv import KV, LIBRARY, TOGETHER
from tests.simulation.membership import SERVERS
from tests.simulation.moves import LARGE, MOVES
from tests.simulation.mutations import MUTATIONS, PARTS
from tests.simulation.operators import SETS
from tests.simulation.table import update_page
from tests.simulation.topics import BOUND, TOPICS
from tests.simulation.trimming import TRIMS
from tests.simulation.upkeep import SCRUBS

_STORY_LINES = 300


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many histories")
    parser.add_argument("--first", type=lambda text: int(text, 0), default=0, help="the first seed")
    parser.add_argument("--seed", type=lambda text: int(text, 0), help="this one history, and its story")
    parser.add_argument("--mutate", metavar="NAME", help="break this rule; exits 1 when that is noticed")
    parser.add_argument("--mutations", action="store_true", help="print the names of the rules that can be broken")
    parser.add_argument(
        "--all-mutations",
        nargs="?",
        const="all",
        choices=["all", *PARTS],
        help="break every rule (of this part); exits 1 if one is not noticed",
    )
    parser.add_argument("--page", type=Path, help="with --all-mutations: write the table into this page")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; as many as there are cores")
    options = parser.parse_args()
    if options.mutations:
        print("\n".join(MUTATIONS))
        return 0
    if options.all_mutations is not None:
        return _all_mutations(options)
    if options.mutate is not None:
        if options.mutate not in MUTATIONS:
            parser.error(f"there is no mutation {options.mutate!r}; `make mutations` names them")
        return _one_mutation(options)
    if options.seed is not None:
        return _one_seed(options.seed)
    return _many_seeds(options)


def _one_seed(seed: int) -> int:
    print(f"seed {seed:#x}", flush=True)
    outcome = one_seed(seed)
    if isinstance(outcome, Caught):
        _tell(outcome)
        return 1
    print(outcome.story)
    _summary([outcome], 0.0)
    return 0


def _outcomes(options: argparse.Namespace) -> Iterator[Passed | Caught]:
    seeds = [*range(options.first, options.first + options.seeds)]
    if not options.first:  # and a few of each kind in which more can happen
        kinds = [GROWS, TRIMS, SCRUBS, SETS, SETS | GROWS, KV, KV | TRIMS, KV | TOGETHER, KV | LIBRARY, TOPICS]
        kinds += [TOPICS | TRIMS, TOPICS | KV, TOPICS | GROWS, TOPICS | BOUND, SHARES]
        kinds += [SETS | MOVES, SETS | MOVES | GROWS, LARGE | SETS, LARGE | SETS | MOVES]
        kinds += [SERVERS, SERVERS | SETS | MOVES, CHANGES, CHANGES | KV]
        seeds += [bit + seed for bit in kinds for seed in range(options.seeds // 10)]
    if options.jobs < 2:
        yield from map(one_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        yield from pool.imap_unordered(one_seed, seeds, chunksize=4)


def _many_seeds(options: argparse.Namespace) -> int:
    print(f"seeds {options.first:#x} to {options.first + options.seeds - 1:#x}", flush=True)
    passed: list[Passed] = []
    start = time.monotonic()
    code = 0
    try:
        for outcome in _outcomes(options):
            if isinstance(outcome, Caught):
                _tell(outcome)
                code = 1
                break
            passed.append(outcome)
    except KeyboardInterrupt:
        code = 130  # a long run that was long enough
    _summary(passed, time.monotonic() - start)
    return code


def _one_mutation(options: argparse.Namespace) -> int:
    caught = hunt(options.mutate, options.seeds if options.seed is None else 1, options.seed or options.first)
    if caught is None:
        print(f"{options.mutate}: not noticed in {options.seeds} seeds")
        return 0
    _tell(caught)
    return 1


def _all_mutations(options: argparse.Namespace) -> int:
    found: dict[str, Caught | None] = {}
    names = PARTS.get(options.all_mutations, tuple(MUTATIONS))
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        waiting = {name: pool.apply_async(hunt, (name,)) for name in names}
        for name, result in waiting.items():
            try:
                caught = found[name] = result.get()
            except AssertionError as error:  # a history that fails without any rule broken: that comes first
                print(f"{name}: {error}", flush=True)
                found[name] = None
                continue
            told = "NOT NOTICED" if caught is None else f"seed {caught.seed:#x}: {caught.checker}: {caught.message}"
            print(f"{name}: {told.splitlines()[0]}", flush=True)
            if options.page is not None:
                update_page(options.page, {name: caught})
    return int(any(caught is None for caught in found.values()))


def _tell(caught: Caught) -> None:
    print("\n".join(caught.story.splitlines()[-_STORY_LINES:]))
    print(f"seed {caught.seed:#x}: {caught.checker}: {caught.message}")
    print(f"again: make simulate SEED={caught.seed:#x}" + (f" MUTATE={caught.mutation}" if caught.mutation else ""))


def _summary(passed: list[Passed], wall_s: float) -> None:
    faults, counts = Counter[str](), Counter[str]()
    for one in passed:
        faults.update(one.faults)
        counts.update(one.counts)
    simulated_s = sum(one.simulated_s for one in passed)
    print(f"{len(passed)} seeds passed, {simulated_s / 3600:.2f} simulated hours in {wall_s:.0f} s")
    print(f"{sum(one.commits for one in passed)} commits checked; " + _listed(counts))
    print(f"{sum(faults.values())} faults: " + _listed(faults))


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counted.items()))


if __name__ == "__main__":
    sys.exit(main())
