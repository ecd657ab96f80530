"""The messages of the protocol as ``google.protobuf`` reads and writes them, from descriptors made in memory.

``SPEC`` is written from the published definitions, not from the tables of ``waltz_ray.topics``: number, name, kind
(s string, y bytes, b bool, i int32, l int64, or a message), and ``!`` required, ``*`` repeated, ``x`` out of use.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["SPEC", "SpecField", "as_oracle", "attribute", "message_class", "plain", "sample", "spec"]

_OUTCOME = "1 success b!, 2 errCode i!, 3 errMsg s!"
SPEC = f"""
RpcConnHeader: 1 flag i!, 2 traceId l, 3 spanId l, 4 parentId l
RequestHeader: 1 serviceType i, 2 protocolVer i
RequestBody: 1 method i!, 2 timeout l, 3 request y
ResponseHeader: 1 status i!, 2 serviceType i, 3 protocolVer i
RspResponseBody: 1 method i!, 2 data y
RspExceptionBody: 1 exceptionName s!, 2 stackTrace s
EventProto: 1 rebalanceId l, 2 opType i, 3 status i, 4 subscribeInfo s*
AuthenticateInfo: 1 userName s!, 2 timestamp l!, 3 nonce i!, 4 othParams s, 5 signature s!
MasterCertificateInfo: 1 authInfo AuthenticateInfo, 2 authorizedToken s
MasterAuthorizedInfo: 1 visitAuthorizedToken l!, 2 authAuthorizedToken s
AuthorizedInfo: 1 visitAuthorizedToken l!, 2 authAuthorizedToken s
ApprovedClientConfig: 1 configId l!, 2 maxMsgSize i
RegisterRequestP2M: 1 clientId s!, 2 topicList s*, 3 brokerCheckSum l!, 4 hostName s!, \
5 authInfo MasterCertificateInfo, 6 jdkVersion s, 7 appdConfig ApprovedClientConfig
RegisterResponseM2P: {_OUTCOME}, 4 brokerCheckSum l!, 5 brokerInfos s*, 6 authorizedInfo MasterAuthorizedInfo, \
7 appdConfig ApprovedClientConfig
HeartRequestP2M: 1 clientId s!, 2 brokerCheckSum l!, 3 hostName s!, 4 topicList s*, 5 authInfo MasterCertificateInfo, \
6 appdConfig ApprovedClientConfig
HeartResponseM2P: {_OUTCOME}, 4 brokerCheckSum l!, 5 topicInfos s*, 6 brokerInfos s*, 7 requireAuth b, \
8 authorizedInfo MasterAuthorizedInfo, 9 appdConfig ApprovedClientConfig
CloseRequestP2M: 1 clientId s!, 2 authInfo MasterCertificateInfo
CloseResponseM2P: {_OUTCOME}
SendMessageRequestP2B: 1 clientId s!, 2 topicName s!, 3 partitionId i!, 4 data y!, 5 flag i!, 6 checkSum i!, \
7 sentAddr i!, 8 msgType s, 9 msgTime s, 10 authInfo AuthorizedInfo
SendMessageResponseB2P: {_OUTCOME}, 4 requireAuth b, 5 messageId l, 6 appendTime l, 7 appendOffset l
RegisterRequestC2M: 1 clientId s!, 2 groupName s!, 3 hostName s!, 4 topicList s*, 5 subscribeInfo s*, \
6 topicCondition s*, 7 requireBound b, 8 sessionTime l, 9 sessionKey s, 10 totalCount i, 11 requiredPartition s, \
12 notAllocated b, 13 selectBig b, 14 groupFlowCheckId l, 15 defFlowCheckId l, 16 ssdStoreId lx, 17 qryPriorityId i, \
18 authInfo MasterCertificateInfo, 19 jdkVersion s
RegisterResponseM2C: {_OUTCOME}, 4 topicInfo s*, 5 notAllocated b, 6 defFlowCheckId l, 7 defFlowControlInfo s, \
8 groupFlowCheckId l, 9 groupFlowControlInfo s, 10 ssdStoreId lx, 11 qryPriorityId i, \
12 authorizedInfo MasterAuthorizedInfo
HeartRequestC2M: 1 clientId s!, 2 groupName s!, 3 subscribeInfo s*, 4 reportSubscribeInfo b!, 5 event EventProto, \
6 defFlowCheckId l, 7 groupFlowCheckId l, 8 ssdStoreId lx, 9 qryPriorityId i, 10 authInfo MasterCertificateInfo
HeartResponseM2C: {_OUTCOME}, 4 event EventProto, 5 notAllocated b, 6 defFlowCheckId l, 7 defFlowControlInfo s, \
8 groupFlowCheckId l, 9 groupFlowControlInfo s, 10 ssdStoreId lx, 11 qryPriorityId i, 12 requireAuth b, \
13 authorizedInfo MasterAuthorizedInfo
CloseRequestC2M: 1 clientId s!, 2 groupName s!, 3 authInfo MasterCertificateInfo
CloseResponseM2C: {_OUTCOME}
RegisterRequestC2B: 1 opType i!, 2 clientId s!, 3 groupName s!, 4 topicName s!, 5 partitionId i!, 6 readStatus i!, \
7 filterCondStr s*, 8 currOffset l, 9 sessionKey s, 10 sessionTime l, 11 ssdStoreId lx, 12 qryPriorityId i, \
13 authInfo AuthorizedInfo
RegisterResponseB2C: {_OUTCOME}, 4 currOffset l, 5 maxOffset l
HeartBeatRequestC2B: 1 clientId s!, 2 groupName s!, 3 readStatus i!, 4 partitionInfo s*, 5 ssdStoreId lx, \
6 qryPriorityId i, 7 authInfo AuthorizedInfo
HeartBeatResponseB2C: {_OUTCOME}, 4 hasPartFailure b, 5 failureInfo s*, 6 requireAuth b
GetMessageRequestC2B: 1 clientId s!, 2 partitionId i!, 3 groupName s!, 4 topicName s!, 5 lastPackConsumed b, \
6 manualCommitOffset b, 7 escFlowCtrl b
TransferedMessage: 1 messageId l!, 2 checkSum i!, 3 payLoadData y!, 4 flag i!
GetMessageResponseB2C: 1 success b!, 2 errCode i!, 3 errMsg s, 4 messages TransferedMessage*, 5 currOffset l, \
6 minLimitTime i, 7 escFlowCtrl b, 8 currDataDlt l, 9 requireSlow b, 10 maxOffset l
CommitOffsetRequestC2B: 1 clientId s!, 2 topicName s!, 3 partitionId i!, 4 groupName s!, 5 lastPackConsumed b
CommitOffsetResponseB2C: {_OUTCOME}, 4 currOffset l, 5 maxOffset l
ProgressRequestC2B: 1 clientId s!, 2 groupName s!, 3 topicName s!, 4 partitionId i!, 5 offset l!, 6 readBytes l!, \
7 filtered b
ProgressResponseB2C: {_OUTCOME}, 4 currOffset l, 5 maxOffset l, 6 minLimitTime i, 7 limited b
ClusterMeantRequest: 1 clusterKey s!
ClusterMeantResponse: {_OUTCOME}
"""

_F = descriptor_pb2.FieldDescriptorProto
_TYPES = {"s": _F.TYPE_STRING, "y": _F.TYPE_BYTES, "b": _F.TYPE_BOOL, "i": _F.TYPE_INT32, "l": _F.TYPE_INT64}
_LABELS = {"!": _F.LABEL_REQUIRED, "*": _F.LABEL_REPEATED}


class SpecField(NamedTuple):
    """One field: ``kind`` is a letter or a message's name; ``mark`` is empty, ``!``, ``*`` or ``x``."""

    number: int
    name: str
    kind: str
    mark: str


def attribute(name: str) -> str:
    """What a field is called in Python."""
    return re.sub("[A-Z]", lambda found: "_" + found[0].lower(), name)


@cache
def spec() -> dict[str, tuple[SpecField, ...]]:
    """By the message's name."""
    found = {}
    for line in SPEC.strip().splitlines():
        name, fields = line.split(": ")
        rows = []
        for field in fields.split(", "):
            number, called, kind = field.split()
            mark = kind[-1] if kind[-1] in "!*x" else ""
            rows.append(SpecField(int(number), called, kind.removesuffix(mark), mark))
        found[name] = tuple(rows)
    return found


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="topics.proto", package="topics", syntax="proto2")
    for name, fields in spec().items():
        message = file.message_type.add(name=name)
        for row in fields:
            added = message.field.add(name=row.name, number=row.number)
            added.label = _LABELS.get(row.mark, _F.LABEL_OPTIONAL)
            if row.kind in _TYPES:
                added.type = _TYPES[row.kind]
            else:
                added.type, added.type_name = _F.TYPE_MESSAGE, f".topics.{row.kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def message_class(name: str) -> Any:
    """Google's class of a message."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"topics.{name}"))


def as_oracle(value: Any) -> Any:
    """One of our values, as Google's message."""
    found = message_class(type(value).__name__)()
    for row in spec()[type(value).__name__]:
        given = getattr(value, attribute(row.name), None)
        if given is None or given == ():
            continue
        if row.mark == "*":
            getattr(found, row.name).extend([each if row.kind in _TYPES else as_oracle(each) for each in given])
        elif row.kind in _TYPES:
            setattr(found, row.name, given)
        else:
            getattr(found, row.name).CopyFrom(as_oracle(given))
    return found


def plain(value: Any) -> Any:
    """What Google's message and our value have in common: a dict by names; absent fields and fields out of use are not
    in it."""
    name = value.DESCRIPTOR.name if hasattr(value, "DESCRIPTOR") else type(value).__name__
    found = {}
    for row in spec()[name]:
        if hasattr(value, "DESCRIPTOR"):
            there = len(getattr(value, row.name)) if row.mark == "*" else value.HasField(row.name)
            given = getattr(value, row.name) if there else None
        else:
            given = getattr(value, attribute(row.name), None)
        if given is None or given == () or row.mark == "x":
            continue
        if row.mark == "*":
            given = [each if row.kind in _TYPES else plain(each) for each in given]
        found[row.name] = given if row.kind in _TYPES or row.mark == "*" else plain(given)
    return found


_SAMPLES: dict[str, list[Any]] = {
    "s": ["orders", "Grüße", ""],
    "y": [b"\x00\xff data", b"", b"x" * 200],
    "b": [True, False, True],
    "i": [7, -1073741310, 2147483647],
    "l": [1700000000123, -1, 300],
}


def sample(kind: type[Any], kinds: dict[str, type[Any]], whole: bool) -> Any:
    """A value of ``kind``: with all its fields, or with those only that must be there."""
    given: dict[str, Any] = {}
    for row in spec()[kind.__name__]:
        if row.mark == "x" or (not whole and row.mark != "!"):
            if row.mark == "*":
                given[attribute(row.name)] = ()
            continue
        if row.kind in _TYPES:
            choices = _SAMPLES[row.kind]
            found: Any = choices[row.number % 3]
            given[attribute(row.name)] = (found, choices[1]) if row.mark == "*" else found
        else:
            inner = sample(kinds[row.kind], kinds, whole=True)
            given[attribute(row.name)] = (inner, inner) if row.mark == "*" else inner
    for row in spec()[kind.__name__]:
        if row.mark == "":
            given.setdefault(attribute(row.name), None)
    return kind(**given)
