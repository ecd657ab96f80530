"""What a producer says to masters (P2M) and brokers (P2B), and what they answer (M2P, B2P). Pure."""

from __future__ import annotations

from waltz_ray.protocol.value import value
from waltz_ray.topics.messages import ApprovedClientConfig, AuthorizedInfo, MasterAuthorizedInfo, MasterCertificateInfo

__all__ = [
    "CloseRequestP2M",
    "CloseResponseM2P",
    "HeartRequestP2M",
    "HeartResponseM2P",
    "RegisterRequestP2M",
    "RegisterResponseM2P",
    "SendMessageRequestP2B",
    "SendMessageResponseB2P",
]


@value()
class RegisterRequestP2M:
    """m1."""

    client_id: str
    topic_list: tuple[str, ...]
    broker_check_sum: int
    """Of the brokers it knows; -1 = of none."""
    host_name: str
    auth_info: MasterCertificateInfo | None = None
    jdk_version: str | None = None
    appd_config: ApprovedClientConfig | None = None


@value()
class RegisterResponseM2P:
    """``err_code``: ``codes.TopicCode``, as in all answers."""

    success: bool
    err_code: int
    err_msg: str
    broker_check_sum: int
    broker_infos: tuple[str, ...] = ()
    """All brokers: ``texts.parse_broker``."""
    authorized_info: MasterAuthorizedInfo | None = None
    appd_config: ApprovedClientConfig | None = None


@value()
class HeartRequestP2M:
    """m2. ``topic_list`` is that of now: it may have grown, never shrunk."""

    client_id: str
    broker_check_sum: int
    host_name: str
    topic_list: tuple[str, ...] = ()
    auth_info: MasterCertificateInfo | None = None
    appd_config: ApprovedClientConfig | None = None


@value()
class HeartResponseM2P:
    """``broker_infos`` only if the checksums differ."""

    success: bool
    err_code: int
    err_msg: str
    broker_check_sum: int
    topic_infos: tuple[str, ...] = ()
    """Where its topics are: ``texts.parse_topic``."""
    broker_infos: tuple[str, ...] = ()
    require_auth: bool | None = None
    """The token is used up: a signature is wanted next time."""
    authorized_info: MasterAuthorizedInfo | None = None
    appd_config: ApprovedClientConfig | None = None


@value()
class CloseRequestP2M:
    """m3."""

    client_id: str
    auth_info: MasterCertificateInfo | None = None


@value()
class CloseResponseM2P:
    """Of m3."""

    success: bool
    err_code: int
    err_msg: str


@value()
class SendMessageRequestP2B:
    """m13: one message. ``payload.py`` says what ``data``, ``flag``, ``check_sum`` and ``sent_addr`` are."""

    client_id: str
    topic_name: str
    partition_id: int
    data: bytes
    flag: int
    check_sum: int
    sent_addr: int
    msg_type: str | None = None
    """By which consumers may filter."""
    msg_time: str | None = None
    """As the producer writes it, yyyyMMddHHmm."""
    auth_info: AuthorizedInfo | None = None


@value()
class SendMessageResponseB2P:
    """``append_time``: milliseconds since 1970."""

    success: bool
    err_code: int
    err_msg: str
    require_auth: bool | None = None
    message_id: int | None = None
    append_time: int | None = None
    append_offset: int | None = None
