"""What messages of both parties have in common: events, rights, settings. Pure.

Classes and fields are called as the protocol calls them, ``errCode`` as ``err_code``; docs/tubemq.md, "Messages", has
all of them with their numbers. None: the field is not there. What a producer says and hears is in
``messages_producer.py``, a consumer in ``messages_consumer.py``, and the bytes of all in ``wire.py``.
"""

from __future__ import annotations

from waltz_ray.protocol.value import value

__all__ = [
    "ApprovedClientConfig",
    "AuthenticateInfo",
    "AuthorizedInfo",
    "ClusterMeantRequest",
    "ClusterMeantResponse",
    "EventProto",
    "MasterAuthorizedInfo",
    "MasterCertificateInfo",
    "UnknownMethod",
]


@value()
class UnknownMethod:
    """A request of a method that there is not; also 0, with which the C++ producer says that it closes."""

    method: int


@value()
class ClusterMeantRequest:
    """m102, ours: which cluster a client means, before all else. Addresses are used again."""

    cluster_key: str


@value()
class ClusterMeantResponse:
    """Of m102. MOVED: another cluster is served here, and the connection ends."""

    success: bool
    err_code: int
    err_msg: str


@value()
class EventProto:
    """An order of the master to a consumer, or the consumer's report of it."""

    rebalance_id: int | None = None
    """Of the round of balancing; rises."""
    op_type: int | None = None
    status: int | None = None
    subscribe_info: tuple[str, ...] = ()
    """``texts.parse_subscription``."""


@value()
class AuthenticateInfo:
    """Who it is, signed: ``authentication.py``."""

    user_name: str
    timestamp: int
    """Milliseconds since 1970, of the signer's clock."""
    nonce: int
    oth_params: str | None
    signature: str


@value()
class MasterCertificateInfo:
    """What a client shows a master: a signature, or the token that it was given for one."""

    auth_info: AuthenticateInfo | None = None
    authorized_token: str | None = None


@value()
class MasterAuthorizedInfo:
    """What a master gives a client to show to brokers and to itself."""

    visit_authorized_token: int
    auth_authorized_token: str | None = None


@value()
class AuthorizedInfo:
    """What a client shows a broker. C++ producers send 0 as ``visit_authorized_token`` whatever they were given."""

    visit_authorized_token: int
    auth_authorized_token: str | None = None


@value()
class ApprovedClientConfig:
    """Settings that a master has for a producer."""

    config_id: int
    """Which they are; the client sends back the one it has."""
    max_msg_size: int | None = None
    """Bytes of one message."""
