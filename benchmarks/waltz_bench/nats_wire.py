"""The few frames of the NATS protocol that a publisher needs, made and counted as cheaply as Python can."""

from __future__ import annotations

from collections.abc import Sequence

from waltz_ray.errors import AppendFailed, WireError

__all__ = ["CONNECT", "AckCounter", "atomic_batch", "publish", "subscribe"]

CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,'
    b'"lang":"raw","version":"1","protocol":1}\r\n'
)

_END = b"}\r\n"  # of every acknowledgement: its payload is one JSON object
_LONGEST_TAIL = 1 << 16


def subscribe(inbox: str) -> bytes:
    """Acknowledgements to ``inbox`` come to this connection."""
    return b"SUB %s 1\r\n" % inbox.encode()


def publish(subject: str, inbox: str, payload: bytes) -> bytes:
    """One message, to be acknowledged to ``inbox``."""
    return b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox.encode(), len(payload), payload)


def atomic_batch(subject: str, inbox: str, batch_id: str, payloads: Sequence[bytes]) -> bytes:
    """One atomic batch (NATS 2.12): one acknowledgement, for the message that commits it, which is the last."""
    frames = []
    for number, payload in enumerate(payloads, 1):
        commit = number == len(payloads)
        head = f"NATS/1.0\r\nNats-Batch-Id: {batch_id}\r\nNats-Batch-Sequence: {number}\r\n"
        head += "Nats-Batch-Commit: 1\r\n\r\n" if commit else "\r\n"
        to = f"{subject} {inbox}" if commit else subject
        frames.append(f"HPUB {to} {len(head)} {len(head) + len(payload)}\r\n{head}".encode() + payload + b"\r\n")
    return b"".join(frames)


class AckCounter:
    """Counts the acknowledgements in a stream of bytes that may be cut anywhere.

    No line is parsed: what is complete ends with ``}`` and a line end, and in that every message must hold a sequence
    number of the stream and no error. AppendFailed with the first error, WireError if the counts disagree.
    """

    def __init__(self) -> None:
        self._tail = b""
        self.pings = 0
        """PINGs of the server that have not been answered; whoever answers them sets it to 0."""

    def feed(self, data: bytes) -> int:
        """How many acknowledgements ``data`` completes."""
        held = self._tail + data if self._tail else data
        end = held.rfind(_END)
        if end < 0:
            self._keep(held)
            return 0
        whole = held[: end + len(_END)]
        self._keep(held[end + len(_END) :])
        acks = whole.count(b'"seq":')
        if b'"error":' in whole or acks != whole.count(b"MSG ") or b"-ERR" in whole:
            raise _refused(whole)
        self.pings += whole.count(b"\nPING\r\n") + whole.startswith(b"PING\r\n")
        return acks

    def _keep(self, tail: bytes) -> None:
        """What is left: an incomplete message, perhaps after lines of other kinds, which are dropped."""
        while b"\r\n" in tail and not tail.startswith(b"MSG "):
            line, _, rest = tail.partition(b"\r\n")
            if line.startswith((b"-ERR", b"HMSG ")):  # HMSG: nobody listens where we publish
                raise _refused(tail)
            self.pings += line == b"PING"
            tail = rest
        if len(tail) > _LONGEST_TAIL:
            raise WireError(f"NATS sent {len(tail)} bytes that are no acknowledgement: {tail[:80]!r}")
        self._tail = tail


def _refused(frames: bytes) -> AppendFailed:
    for mark in (b'"error":', b"-ERR", b"HMSG "):
        at = frames.find(mark)
        if at >= 0:
            text = frames[at : at + 200].decode("utf-8", "replace").strip()
            return AppendFailed(f"NATS refused a message: {text}")
    return AppendFailed(f"NATS answered something that is no acknowledgement: {frames[:200]!r}")
