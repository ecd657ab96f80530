"""Random histories against a list: whatever is done in whatever order, with crashes in between."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.faulty_disk import FaultyDisk, Survival
from tests.storage.helpers import SMALL, SMALL_AHEAD, append, assert_verifies, contents, create, data_of, reopen
from waltz_ray.config import StorageConfig

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 30)),
        st.tuples(st.just("sync"), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 100)),
        st.tuples(st.just("mark"), st.integers(0, 100)),
        st.tuples(st.just("session"), st.integers(0, 3)),
        st.tuples(st.just("read"), st.integers(0, 100)),
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 10)),
    ),
    max_size=25,
)


@settings(max_examples=150)
@given(steps, st.sampled_from([SMALL, SMALL_AHEAD, StorageConfig(index_flush_interval=2)]), st.integers(0, 1000))
def test_the_log_is_a_list(history: list[tuple[str, int]], config: StorageConfig, seed: int) -> None:
    disk = FaultyDisk(seed)
    store = create(disk, config)
    log = store.partition(0)
    log.open_session(0)
    model: list[bytes] = []
    durable, low, tag = 0, -1, 0
    for what, number in history:
        share = len(model) * number // 100 - 1 if model else -1
        if what == "append":
            tag += 1
            model += [data_of(i, tag) for i in range(len(model), len(model) + number)]
            append(log, number, tag)
        elif what == "sync":
            assert log.sync() == len(model) - 1
            durable = len(model)
        elif what == "truncate":
            log.truncate(log.session_id, share)
            del model[share + 1 :]
            durable, low = len(model), min(low, share)
        elif what == "mark":
            log.set_low_water_mark(log.session_id, share, share)
            durable, low = len(model), share
        elif what == "session":
            assert log.open_session(log.session_id + number) == log.session_id - number
            durable = len(model)
        elif what == "read" and model:
            batch = log.read(max(share, 0), len(model), number * 10)
            assert list(batch.datas()) == model[batch.first_id : batch.end_id]
        elif what in ("reopen", "crash"):
            session_id = log.session_id
            if what == "reopen":
                store.close()
                durable = len(model)
            disk.crash(Survival(number / 20, 0.5))
            store = reopen(disk, config)
            log = store.partition(0)
            assert log.damaged is None
            assert durable <= log.last_id + 1 <= len(model)
            assert log.session_id == session_id
            del model[log.last_id + 1 :]
            durable = len(model)
            log.open_session(session_id)
        assert (log.last_id, log.local_low_water_mark) == (len(model) - 1, low)
    assert contents(log) == model
    store.close()
    assert disk.open_handles() == 0
    assert_verifies(disk, len(model) - 1)
