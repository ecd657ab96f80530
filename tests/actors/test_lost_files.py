"""What a replica says of partitions whose files it has lost."""

from __future__ import annotations

from waltz_ray.actors.lost_files import LostFiles
from waltz_ray.protocol.messages.replica import OPEN_REQUEST, RefusalCode, Refused, StateReply


def refused(partition_id: int, code: RefusalCode) -> Refused:
    return Refused(partition_id, 7, OPEN_REQUEST, code, 3, -1, f"partition {partition_id}: {code.name}")


def test_what_is_lost_is_told_until_a_session_is_opened_on_it_again() -> None:
    lost = LostFiles()
    assert lost.problem() == ""
    lost.noted([refused(1, RefusalCode.DISK_FULL), refused(2, RefusalCode.LOST_FILES)])
    assert lost.problem() == "takes no part in partition 2: partition 2: LOST_FILES"
    lost.noted([refused(5, RefusalCode.LOST_FILES), refused(2, RefusalCode.FENCED)])
    assert lost.problem().startswith("takes no part in partitions 2, 5: partition 2: ")
    assert lost.problem(gone=[2]) == "takes no part in partition 5: partition 5: LOST_FILES"
    lost.noted([StateReply(2, 8, -1, -1, -1, -1, False), refused(5, RefusalCode.DAMAGED)])
    assert lost.problem() == ""
