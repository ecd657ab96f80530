"""Which servers count as cut off from the replicas, look by look."""

from __future__ import annotations

from waltz_ray.actors.cut_off import CutOff
from waltz_ray.runtime.status import ActorState, LinkStatus, ServerStatus

SERVING, SILENT = ActorState.SERVING, ActorState.NO_ANSWER


def server(up: int, of: int = 3, state: ActorState = SERVING) -> ServerStatus:
    return ServerStatus(state=state, links={r: LinkStatus(r < up, None, {}) for r in range(of)})


def looks(watch: CutOff, count: int, **ups: int) -> frozenset[int]:
    for _ in range(count):
        watch.seen({int(name[1:]): server(up) for name, up in ups.items()})
    return watch.servers


def test_one_look_is_no_proof() -> None:
    watch = CutOff()
    first = looks(watch, 1, s0=1, s1=3)
    assert first == set()
    assert looks(watch, 1, s0=2, s1=3) == set()
    assert looks(watch, 1, s0=1, s1=3) == set()
    assert looks(watch, 1, s0=1, s1=3) == {0}
    assert first == set(), "what was said before stays as it was"


def test_who_was_cut_off_has_to_be_well_for_a_while() -> None:
    watch = CutOff()
    looks(watch, 2, s0=0, s1=3)
    assert looks(watch, 2, s0=3, s1=3) == {0}
    assert looks(watch, 1, s0=1, s1=3) == {0}
    assert looks(watch, 2, s0=3, s1=3) == {0}
    assert looks(watch, 1, s0=3, s1=3) == set()


def test_half_of_the_replicas_is_too_few_and_a_majority_is_not() -> None:
    watch = CutOff()
    for _ in range(2):
        watch.seen({0: server(2, of=4), 1: server(3, of=5), 2: server(2, of=5), 3: server(0, of=0)})
    assert watch.servers == {0, 2}


def test_who_does_not_answer_is_as_he_was_and_who_is_removed_is_forgotten() -> None:
    watch = CutOff()
    looks(watch, 2, s0=0, s1=3)
    for _ in range(5):
        watch.seen({0: server(0, of=0, state=SILENT), 1: server(0, state=SILENT)})
    assert watch.servers == {0}
    assert watch.seen({1: server(3)}) == set()
