"""What a consumer says to masters (C2M) and brokers (C2B), and what they answer (M2C, B2C). Pure.

Numbers that are out of use (``ssdStoreId`` of the original) are no fields: they are skipped where a client sends them.
"""

from __future__ import annotations

from waltz_ray.protocol.value import value
from waltz_ray.topics.messages import AuthorizedInfo, EventProto, MasterAuthorizedInfo, MasterCertificateInfo

__all__ = [
    "CloseRequestC2M",
    "CloseResponseM2C",
    "CommitOffsetRequestC2B",
    "CommitOffsetResponseB2C",
    "GetMessageRequestC2B",
    "GetMessageResponseB2C",
    "HeartBeatRequestC2B",
    "HeartBeatResponseB2C",
    "HeartRequestC2M",
    "HeartResponseM2C",
    "ProgressRequestC2B",
    "ProgressResponseB2C",
    "RegisterRequestC2B",
    "RegisterRequestC2M",
    "RegisterResponseB2C",
    "RegisterResponseM2C",
    "TransferedMessage",
]

# ---- with a master ----------------------------------------------------------------------------------------


@value()
class RegisterRequestC2M:
    """m4. From ``require_bound`` to ``required_partition``: of a group that begins together, at given offsets."""

    client_id: str
    group_name: str
    host_name: str
    topic_list: tuple[str, ...] = ()
    subscribe_info: tuple[str, ...] = ()
    """What it has already: ``texts.parse_subscription``."""
    topic_condition: tuple[str, ...] = ()
    """Filters: ``texts.parse_condition``."""
    require_bound: bool | None = None
    session_time: int | None = None
    """Milliseconds since 1970."""
    session_key: str | None = None
    total_count: int | None = None
    """Members of the group."""
    required_partition: str | None = None
    """``texts.parse_required_partitions``."""
    not_allocated: bool | None = None
    select_big: bool | None = None
    """Of two offsets that are given for a partition the larger counts."""
    group_flow_check_id: int | None = None
    def_flow_check_id: int | None = None
    qry_priority_id: int | None = None
    auth_info: MasterCertificateInfo | None = None
    jdk_version: str | None = None


@value()
class RegisterResponseM2C:
    """Partitions come later, as events of heartbeats."""

    success: bool
    err_code: int
    err_msg: str
    topic_info: tuple[str, ...] = ()
    not_allocated: bool | None = None
    def_flow_check_id: int | None = None
    def_flow_control_info: str | None = None
    """The rules for everybody, as JSON."""
    group_flow_check_id: int | None = None
    group_flow_control_info: str | None = None
    qry_priority_id: int | None = None
    authorized_info: MasterAuthorizedInfo | None = None


@value()
class HeartRequestC2M:
    """m5. ``subscribe_info`` is all that it has if ``report_subscribe_info``; ``event`` is what became of the last."""

    client_id: str
    group_name: str
    subscribe_info: tuple[str, ...]
    report_subscribe_info: bool
    event: EventProto | None = None
    def_flow_check_id: int | None = None
    group_flow_check_id: int | None = None
    qry_priority_id: int | None = None
    auth_info: MasterCertificateInfo | None = None


@value()
class HeartResponseM2C:
    """``event``: what it is to do."""

    success: bool
    err_code: int
    err_msg: str
    event: EventProto | None = None
    not_allocated: bool | None = None
    def_flow_check_id: int | None = None
    def_flow_control_info: str | None = None
    group_flow_check_id: int | None = None
    group_flow_control_info: str | None = None
    qry_priority_id: int | None = None
    require_auth: bool | None = None
    authorized_info: MasterAuthorizedInfo | None = None


@value()
class CloseRequestC2M:
    """m6."""

    client_id: str
    group_name: str
    auth_info: MasterCertificateInfo | None = None


@value()
class CloseResponseM2C:
    """Of m6."""

    success: bool
    err_code: int
    err_msg: str


# ---- with a broker ----------------------------------------------------------------------------------------


@value()
class RegisterRequestC2B:
    """m15, for one partition. ``op_type``: ``codes.BrokerOperation``, to register or to log out."""

    op_type: int
    client_id: str
    group_name: str
    topic_name: str
    partition_id: int
    read_status: int
    """0 = go on where the group was, 1 = at the end if it was nowhere, 2 = at the end."""
    filter_cond_str: tuple[str, ...] = ()
    """Message types; none = all messages."""
    curr_offset: int | None = None
    """Where to begin; absent or negative = where ``read_status`` says."""
    session_key: str | None = None
    session_time: int | None = None
    qry_priority_id: int | None = None
    auth_info: AuthorizedInfo | None = None


@value()
class RegisterResponseB2C:
    """``curr_offset``: where it begins; ``max_offset``: where the partition ends."""

    success: bool
    err_code: int
    err_msg: str
    curr_offset: int | None = None
    max_offset: int | None = None


@value()
class HeartBeatRequestC2B:
    """m16, for the partitions that it has on this broker: ``texts.parse_place``."""

    client_id: str
    group_name: str
    read_status: int
    partition_info: tuple[str, ...] = ()
    qry_priority_id: int | None = None
    auth_info: AuthorizedInfo | None = None


@value()
class HeartBeatResponseB2C:
    """``failure_info``: which of them it has not, and why: ``texts.parse_failure``."""

    success: bool
    err_code: int
    err_msg: str
    has_part_failure: bool | None = None
    failure_info: tuple[str, ...] = ()
    require_auth: bool | None = None


@value()
class GetMessageRequestC2B:
    """m17. ``last_pack_consumed``: what the last pull brought is done with; else it comes again."""

    client_id: str
    partition_id: int
    group_name: str
    topic_name: str
    last_pack_consumed: bool | None = None
    manual_commit_offset: bool | None = None
    """Several pulls, then one confirm."""
    esc_flow_ctrl: bool | None = None
    """Flow control is not for this one."""


@value()
class TransferedMessage:
    """One message as a consumer gets it. Java consumers drop it silently if ``check_sum`` is not that of the data."""

    message_id: int
    check_sum: int
    pay_load_data: bytes
    flag: int


@value()
class GetMessageResponseB2C:
    """Offsets are of the partition; ``min_limit_time`` in milliseconds: how long not to pull."""

    success: bool
    err_code: int
    err_msg: str | None = None
    messages: tuple[TransferedMessage, ...] = ()
    curr_offset: int | None = None
    min_limit_time: int | None = None
    esc_flow_ctrl: bool | None = None
    curr_data_dlt: int | None = None
    """Bytes that the group is behind."""
    require_slow: bool | None = None
    max_offset: int | None = None


@value()
class CommitOffsetRequestC2B:
    """m18: of the last pull."""

    client_id: str
    topic_name: str
    partition_id: int
    group_name: str
    last_pack_consumed: bool | None = None
    """Done with; false: it comes again."""


@value()
class CommitOffsetResponseB2C:
    """Where the group is now."""

    success: bool
    err_code: int
    err_msg: str
    curr_offset: int | None = None
    max_offset: int | None = None


# ---- ours: of consumers that read the log themselves


@value()
class ProgressRequestC2B:
    """m101: what has become of one partition since the last time, and whether more may be read. It renews the lease."""

    client_id: str
    group_name: str
    topic_name: str
    partition_id: int
    offset: int
    """What is below it has been consumed; -1 = nothing more than before."""
    read_bytes: int
    """Of messages that were read since the last time."""
    filtered: bool | None = None
    """Filters were at work."""


@value()
class ProgressResponseB2C:
    """``min_limit_time``: milliseconds in which nothing more is to be given to the application; ``limited``: there are
    rules of flow, it is to be asked about each batch."""

    success: bool
    err_code: int
    err_msg: str
    curr_offset: int | None = None
    """Where the group is."""
    max_offset: int | None = None
    min_limit_time: int | None = None
    limited: bool | None = None
