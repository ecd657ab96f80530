"""Histories of the whole cluster, the same seed twice, and every rule broken once.

``SIMULATION_SEEDS=1000 pytest tests/simulation`` goes further; `make simulate` further still.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation.campaign import Caught, Passed, hunt, one_seed
from tests.simulation.changes import CHANGES
from tests.simulation.clients import SHARES
from tests.simulation.growth import GROWS
from tests.simulation.known_seeds import KNOWN_SEEDS
from tests.simulation.kv import KV, LIBRARY, TOGETHER
from tests.simulation.membership import SERVERS
from tests.simulation.moves import LARGE, MOVES
from tests.simulation.mutations import MUTATIONS
from tests.simulation.operators import SETS
from tests.simulation.regressions import REGRESSIONS
from tests.simulation.topics import BOUND, TOPICS
from tests.simulation.trimming import TRIMS
from tests.simulation.upkeep import SCRUBS

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "200"))
CHUNKS = 6


def passed(seed: int) -> Passed:
    outcome = one_seed(seed)
    assert isinstance(outcome, Passed), f"seed {seed:#x}: {outcome.checker}: {outcome.message}\n{outcome.story}"
    return outcome


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_histories(chunk: int) -> None:
    counts, faults = Counter[str](), Counter[str]()
    seeds = range(chunk, SEEDS, CHUNKS)
    for seed in seeds:
        outcome = passed(seed)
        counts.update(outcome.counts)
        faults.update(outcome.faults)
        counts["commits"] += outcome.commits
    # A world in which nothing happens would satisfy every checker.
    assert counts["commits"] > 50 * len(seeds), counts
    assert min(counts["told committed"], counts["told in the log"], counts["told absent"]) > len(seeds), counts
    assert counts["lock failures of contexts"] > len(seeds), counts
    assert len(faults) >= 10, faults
    assert sum(faults.values()) > 3 * len(seeds), faults


def test_histories_in_which_spaces_come_and_go() -> None:
    faults = Counter[str]()
    for seed in range(GROWS, GROWS + SEEDS // 20):
        faults.update(passed(seed).faults)
    assert min(faults["space created"], faults["space deleted"]) > 0, faults


def test_histories_in_which_sets_move_over_more_replicas_than_they_need() -> None:
    counts, faults = Counter[str](), Counter[str]()
    for seed in range(SETS, SETS + SEEDS // 20):
        outcome = passed(seed)
        counts["commits"] += outcome.commits
        faults.update(outcome.faults)
    assert counts["commits"] > 50 * (SEEDS // 20), counts
    assert faults["replica set changed"] > SEEDS // 20, faults


def test_histories_in_which_the_manager_moves_sets_and_replicas_come_and_go() -> None:
    counts, faults = Counter[str](), Counter[str]()
    for seed in range(SETS + MOVES, SETS + MOVES + SEEDS // 20):
        outcome = passed(seed)
        counts.update(outcome.counts)
        faults.update(outcome.faults)
    assert min(counts["sets changed by the mover"], counts["partitions given up"]) > 2 * (SEEDS // 20), counts
    assert min(faults["replica added"], faults["replica drained"], faults["manager killed in a move"]) > 0, faults


def test_histories_of_nine_replicas_and_32_partitions() -> None:
    counts = Counter[str]()
    for seed in (LARGE + SETS, LARGE + SETS + MOVES, LARGE + SETS + MOVES + 1):
        outcome = passed(seed)
        counts.update(outcome.counts)
        counts["commits"] += outcome.commits
    assert counts["commits"] > 32, counts
    assert counts["sets changed by the mover"] > 32, counts


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("one_vote_too_few", SETS + 0x3),
        ("removal_forgets_the_published_quorum", SETS + 0x16),
        ("votes_are_counted_with_the_new_quorum", SETS + 0x16),
    ],
)
def test_a_broken_rule_of_sets_is_noticed_where_they_move(name: str, seed: int) -> None:
    caught = hunt(name, seeds=1, first=seed)
    assert isinstance(caught, Caught)
    assert caught.checker == "no_loss", caught.message


def test_histories_in_which_servers_come_and_go() -> None:
    faults = Counter[str]()
    for seed in (*range(SERVERS, SERVERS + SEEDS // 10), SERVERS + SETS + MOVES):
        faults.update(passed(seed).faults)
    expected = ("server added", "server drained", "drain of a server cancelled", "server removed")
    assert min(faults[kind] for kind in expected) > 0, faults


def test_histories_in_which_records_are_given_up() -> None:
    counts, faults = Counter[str](), Counter[str]()
    for seed in range(TRIMS, TRIMS + SEEDS // 10):
        outcome = passed(seed)
        counts.update(outcome.counts)
        faults.update(outcome.faults)
    assert min(counts["trims"], counts["databases taken over"], counts["logs begun anew"]) > 0, counts
    assert min(faults["log trimmed"], faults["hold changed"], faults["retention changed"]) > 0, faults


def test_histories_in_which_rot_is_repaired() -> None:
    counts = Counter[str]()
    for seed in range(SCRUBS, SCRUBS + SEEDS // 20):
        counts.update(passed(seed).counts)
    assert counts["rotten segments repaired"] > SEEDS // 40, counts


def test_histories_in_which_records_change_in_memory_and_on_their_way() -> None:
    counts, faults = Counter[str](), Counter[str]()
    for seed in range(CHANGES, CHANGES + SEEDS // 20):
        outcome = passed(seed)
        counts.update(outcome.counts)
        faults.update(outcome.faults)
    assert min(faults["record changed in memory"], faults["record changed on its way"]) > 0, faults
    assert counts["refused INVALID_REQUEST"] > SEEDS // 20, counts


def test_histories_of_clients_that_share_connections() -> None:
    counts = Counter[str]()
    for seed in range(SHARES, SHARES + SEEDS // 20):
        counts.update(passed(seed).counts)
    assert min(counts["companions closed"], counts["told committed"]) > SEEDS // 20, counts


def test_histories_of_the_key_value_layer() -> None:
    counts, faults = Counter[str](), Counter[str]()
    for seed in range(KV, KV + SEEDS // 20):
        outcome = passed(seed)
        counts.update(outcome.counts)
        faults.update(outcome.faults)
    assert min(counts["kv Store Stored"], counts["kv Peek Shown"]) > 20 * (SEEDS // 20), counts
    assert min(counts["kv Obtain Granted"], counts["kv Store Unmet"], counts["kv snapshots"]) > 0, counts
    assert min(faults["kv actor killed"], faults["kv actor alone with its clients"]) > 0, faults


def test_histories_in_which_an_actor_is_overtaken_by_compaction() -> None:
    counts, faults = Counter[str](), Counter[str]()
    for seed in range(KV + TRIMS, KV + TRIMS + SEEDS // 20):
        outcome = passed(seed)
        counts.update(outcome.counts)
        faults.update(outcome.faults)
    assert min(counts["kv feeds overtaken"], faults["kv actor lags behind"]) > 0, (counts, faults)


def test_histories_in_which_items_are_written_together() -> None:
    counts = Counter[str]()
    for seed in range(KV + TOGETHER, KV + TOGETHER + SEEDS // 20):
        counts.update(passed(seed).counts)
    assert counts["kv written together"] > 20 * (SEEDS // 20), counts


def test_histories_of_the_library_s_clients() -> None:
    counts = Counter[str]()
    for seed in range(KV + LIBRARY, KV + LIBRARY + SEEDS // 40):
        counts.update(passed(seed).counts)
    assert min(counts["kv scans"], counts["kv events"]) > 20 * (SEEDS // 40), counts


def test_histories_of_topics() -> None:
    counts, faults = Counter[str](), Counter[str]()
    for seed in range(TOPICS, TOPICS + SEEDS // 20):
        outcome = passed(seed)
        counts.update(outcome.counts)
        faults.update(outcome.faults)
    assert min(counts["topic messages acknowledged"], counts["topic messages delivered"]) > 100 * (SEEDS // 20), counts
    assert min(counts["topic batches confirmed"], counts["topic offsets stored"]) > 50 * (SEEDS // 20), counts
    assert min(counts["topic offsets reset"], counts["topic orders and grants"], counts["topic leaders"]) > 0, counts
    assert min(faults["topic actor killed"], faults["topic actor taken for dead"]) > 0, faults


def test_histories_of_groups_that_are_bound() -> None:
    counts = Counter[str]()
    for seed in range(TOPICS + BOUND, TOPICS + BOUND + SEEDS // 40):
        counts.update(passed(seed).counts)
    assert min(counts["topic bound groups begun"], counts["topic offsets reset"]) > SEEDS // 40, counts


@pytest.mark.parametrize("seed", REGRESSIONS, ids=hex)
def test_what_was_found_stays_mended(seed: int) -> None:
    assert passed(seed).commits > 0


@pytest.mark.parametrize("seed", [0x2A, KV + LIBRARY + 1, TOPICS + BOUND + 1], ids=hex)
def test_the_same_seed_is_the_same_history(seed: int) -> None:
    """Also in another process, with other hashes of strings."""
    here = [passed(seed).digest, passed(seed).digest]
    code = f"from tests.simulation.campaign import one_seed; print(one_seed({seed}).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    there = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=900
    ).stdout.strip()
    assert here == [there, there]
    assert passed(seed + 1).digest != there


def test_every_mutation_has_a_known_seed() -> None:
    assert set(KNOWN_SEEDS) == set(MUTATIONS)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_is_noticed(name: str) -> None:
    caught = hunt(name, seeds=20, known_is_sound=True)
    assert isinstance(caught, Caught), f"{name} is not noticed; `make simulate-mutations` looks for a seed"


RUN_ABOVE = [
    *range(SEEDS),
    *(
        bit + seed
        for bit in (GROWS, KV, KV + TRIMS, KV + TOGETHER, SCRUBS, TOPICS, SHARES, SETS + MOVES, CHANGES)
        for seed in range(SEEDS // 20)
    ),
    *(TOPICS + BOUND + seed for seed in range(SEEDS // 40)),
]
RUN_ABOVE += range(TRIMS, TRIMS + SEEDS // 10)


@pytest.mark.parametrize("seed", sorted(set(KNOWN_SEEDS.values()) - set(RUN_ABOVE)), ids=hex)
def test_the_tested_seed_of_a_mutation_passes_without_it(seed: int) -> None:
    """So what is noticed is the mutation."""
    assert passed(seed).commits > 0
