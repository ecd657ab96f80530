"""The flow control rules of all groups: a default, and of some groups their own; as JSON for ZooKeeper. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.json_text import known_fields, loaded, object_in, text_in
from waltz_ray.protocol.value import value
from waltz_ray.topics.flow_rules import (
    NO_RULES,
    FlowRules,
    check_id,
    flow_document,
    flow_rules_from,
    protocol_text,
)

__all__ = ["FlowTable", "decode_flow_table", "encode_flow_table"]

_NODE_BYTES = 768 * 1024  # of the 1 MiB that a ZooKeeper node may have
_GROUPS = 4_096
_GROUP_CHARS = 1_024


@value()
class FlowTable:
    """``groups``: those with rules of their own."""

    default: FlowRules = NO_RULES
    groups: Mapping[str, FlowRules] = field(default_factory=dict)

    def rules_of(self, group: str) -> FlowRules:
        """What holds for ``group``: of each type its own rules if it has such, else the default."""
        own, default = self.groups.get(group, NO_RULES), self.default
        timed = own if own.data else default  # the zone is that of the rules with times
        return FlowRules(timed.data, own.empties or default.empties, own.pause or default.pause, timed.zone_minutes)

    def news(self, group: str, default_id: int, group_id: int) -> tuple[tuple[int, str], tuple[int, str]]:
        """What is sent to a client that knows these two flowCheckIds: (ID, text) of the default and of its group's own.
        The text is empty if the client has it, or if there are no rules."""
        return _news(self.default, default_id), _news(self.groups.get(group, NO_RULES), group_id)


def _news(rules: FlowRules, known_id: int) -> tuple[int, str]:
    current = check_id(rules)
    return current, "" if current in (known_id, 0) else protocol_text(rules)


def encode_flow_table(table: FlowTable) -> bytes:
    """As it stands in ZooKeeper. InvalidInput if it is too large for that."""
    groups = {group: flow_document(rules) for group, rules in sorted(table.groups.items())}
    raw = json.dumps({"default": flow_document(table.default), "groups": groups}, separators=(",", ":")).encode()
    if len(raw) > _NODE_BYTES or len(groups) > _GROUPS:
        raise InvalidInput(
            f"the flow control rules of {len(groups)} groups take {len(raw)} bytes; {_GROUPS} and {_NODE_BYTES} are "
            "the most: let groups with the same rules have the default"
        )
    return raw


def decode_flow_table(data: bytes) -> FlowTable:
    """InvalidInput names what cannot be, and where it stands."""
    what = "the flow control rules"
    document = object_in(loaded(data, what, _NODE_BYTES), what)
    known_fields(document, what, ("default", "groups"))
    groups = object_in(document.get("groups", {}), f"{what}: groups")
    if len(groups) > _GROUPS:
        raise InvalidInput(f"{what}: rules of {len(groups)} groups, {_GROUPS} are the most")
    return FlowTable(
        flow_rules_from(document.get("default", []), f"{what}: default"),
        {
            text_in(group, f"{what}: the name of a group", _GROUP_CHARS): flow_rules_from(
                rules, f"{what}: group {group[:40]}"
            )
            for group, rules in groups.items()
        },
    )
