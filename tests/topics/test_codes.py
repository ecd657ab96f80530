"""Public numbers, which never change."""

from __future__ import annotations

from waltz_ray.topics.codes import BrokerOperation, TopicCode


def test_t50_the_codes() -> None:
    """T50."""
    assert {int(code): code.name for code in TopicCode} == {
        200: "OK",
        201: "NOT_READY",
        301: "MOVED",
        400: "BAD_REQUEST",
        401: "UNAUTHORIZED",
        403: "FORBIDDEN",
        404: "NOT_FOUND",
        405: "ALL_PARTITIONS_FROZEN",
        406: "NO_PARTITION_ASSIGNED",
        407: "ALL_PARTITIONS_WAITING",
        408: "ALL_PARTITIONS_IN_USE",
        410: "PARTITION_OCCUPIED",
        411: "HB_NO_NODE",
        412: "DUPLICATE_PARTITION",
        415: "CERTIFICATE_FAILURE",
        419: "RECEIVE_OVERFLOW",
        450: "GROUP_FORBIDDEN",
        452: "SPEED_LIMIT",
        455: "CONTENT_FORBIDDEN",
        500: "INTERNAL_ERROR",
        503: "UNAVAILABLE",
        510: "NO_MESSAGE_STORE",
    }


def test_t22_operations_of_m15() -> None:
    """T22, the numbers."""
    assert {int(operation): operation.name for operation in BrokerOperation} == {31: "REGISTER", 32: "LOGOUT"}
