"""Numbers of the protocol: methods, services, error codes. Public and frozen. Pure."""

from __future__ import annotations

import enum

__all__ = ["BrokerOperation", "RpcMethod", "RpcStatus", "ServiceType", "TopicCode"]


class RpcMethod(enum.IntEnum):
    """What a request asks for: 1 to 6 of a master, from 13 on of a broker. Any other number is none. PROGRESS is ours:
    of consumers that read the log themselves; CLUSTER_MEANT, too: of clients that know their cluster, on both ports."""

    PRODUCER_REGISTER = 1
    PRODUCER_HEARTBEAT = 2
    PRODUCER_CLOSE = 3
    CONSUMER_REGISTER = 4
    CONSUMER_HEARTBEAT = 5
    CONSUMER_CLOSE = 6
    SEND_MESSAGE = 13
    PARTITION_REGISTER = 15
    PARTITION_HEARTBEAT = 16
    GET_MESSAGE = 17
    COMMIT_OFFSET = 18
    PROGRESS = 101
    CLUSTER_MEANT = 102

    @property
    def service(self) -> ServiceType:
        """Which service has it."""
        if self <= RpcMethod.CONSUMER_CLOSE:
            return ServiceType.MASTER
        return ServiceType.BROKER_WRITE if self is RpcMethod.SEND_MESSAGE else ServiceType.BROKER_READ


class ServiceType(enum.IntEnum):
    """To which service of a port a request goes."""

    MASTER = 1
    BROKER_READ = 2
    BROKER_WRITE = 3


class RpcStatus(enum.IntEnum):
    """Of a reply: an answer, or an exception; FATAL: the request could not even be read."""

    SUCCESS = 0
    ERROR = 1
    FATAL = 2


class BrokerOperation(enum.IntEnum):
    """``op_type`` of m15."""

    REGISTER = 31
    LOGOUT = 32


class TopicCode(enum.IntEnum):
    """``err_code`` of an answer. Clients act on them: each says what they do."""

    OK = 200
    NOT_READY = 201
    """Ask again soon."""
    MOVED = 301
    """It is on another broker: a consumer gives the partition back."""
    BAD_REQUEST = 400
    """The request makes no sense, or a message has no data or too much."""
    UNAUTHORIZED = 401
    FORBIDDEN = 403
    """Also of a message whose checksum is wrong."""
    NOT_FOUND = 404
    """Of a pull: no data just now."""
    ALL_PARTITIONS_FROZEN = 405
    """This and the next three are made by clients for themselves."""
    NO_PARTITION_ASSIGNED = 406
    ALL_PARTITIONS_WAITING = 407
    ALL_PARTITIONS_IN_USE = 408
    PARTITION_OCCUPIED = 410
    """Another consumer of the group has it: the client waits for the next round of balancing."""
    HB_NO_NODE = 411
    """Nobody knows the client (any more): it registers again."""
    DUPLICATE_PARTITION = 412
    CERTIFICATE_FAILURE = 415
    """The signature is wrong, or too old."""
    RECEIVE_OVERFLOW = 419
    """The broker has too much to do: send again later."""
    GROUP_FORBIDDEN = 450
    """The group is on the blacklist."""
    SPEED_LIMIT = 452
    """Too fast: not again for ``min_limit_time`` milliseconds."""
    CONTENT_FORBIDDEN = 455
    """The group may not have these topics, or these filters."""
    INTERNAL_ERROR = 500
    UNAVAILABLE = 503
    """The broker takes nothing: clients avoid it for a while."""
    NO_MESSAGE_STORE = 510
