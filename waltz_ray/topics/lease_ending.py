"""What a slot is told when the master grants a partition, or a group's offset is set: who has it lets go. Pure.

It is a request of our own on the slot's port, in the form of a partition's registration (m15) with an operation that
the protocol has not: ``session_key`` proves that it is from a master of this cluster, or from an operator who may read
its ZooKeeper. A client that makes one up is refused as for any other number.
"""

from __future__ import annotations

import hashlib
import hmac

from waltz_ray.topics.messages_consumer import RegisterRequestC2B
from waltz_ray.topics.tokens import AuthSecrets

__all__ = ["OTHERS_END", "is_from_a_master", "others_end"]

OTHERS_END = 0x5741
"""``op_type``: the lease of anybody but ``client_id`` ends."""


def others_end(secrets: AuthSecrets, group: str, topic: str, slot: int, client_id: str) -> RegisterRequestC2B:
    """The request to ``slot``: the partition of ``topic`` is granted to ``client_id``; "": nobody goes on with it, and
    who registers begins where the group is by then."""
    proof = _proof(secrets.current, group, topic, slot, client_id)
    return RegisterRequestC2B(OTHERS_END, client_id, group, topic, 0, 0, session_key=proof)


def is_from_a_master(secrets: AuthSecrets, request: RegisterRequestC2B, slot: int) -> bool:
    """Whether the request was made under one of the secrets."""
    shown = (request.session_key or "").encode(errors="replace")
    for secret in (secrets.current, secrets.previous):
        proof = _proof(secret, request.group_name, request.topic_name, slot, request.client_id)
        if secret and hmac.compare_digest(proof.encode(), shown):
            return True
    return False


def _proof(secret: bytes, group: str, topic: str, slot: int, client_id: str) -> str:
    parts = [each.encode(errors="replace") for each in ("others end", group, topic, str(slot), client_id)]
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(secret, text, hashlib.sha256).hexdigest()
