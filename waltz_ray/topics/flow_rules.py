"""The rules of how fast a group may consume: the protocol's JSON, checked; which rule holds when. Pure.

The protocol's form is a list of records, ``{"type": t, "rule": [...]}``, each type at most once:

==== ========================================================== ====================================================
type an entry                                                   means
==== ========================================================== ====================================================
0    start, end "HH:MM", dltInM, limitInM, freqInMs             from ``start`` to the end of the minute ``end``, who is
                                                                more than dltInM MiB behind is given limitInM MiB in
                                                                a minute, and then is to ask every freqInMs ms
1    zeroCnt, freqInMs                                          after zeroCnt pulls without data in a row, wait
                                                                freqInMs ms before the next; the largest that fits
3    normFreqInMs, filterFreqInMs, minDataFilterFreqInMs        wait so long after a pull with data: without filters,
                                                                with filters, with filters that leave little
==== ========================================================== ====================================================

Type 2 was about a disk that nobody has any more; it is accepted and ignored. Its times are of the zone GMT+8, whatever
the clocks of broker and clients say. Our own form names the zone: ``{"zone": "+01:00", "rules": [...]}`` (``UTC``, or
hours and minutes east of it; one that is the same all the year). Clients are sent the protocol's form, with the times
moved to GMT+8 (``protocol_text``). A rule that begins before midnight and ends after it is written as two.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.json_text import int_in, known_fields, list_in, loaded, object_in
from waltz_ray.protocol.value import value

__all__ = [
    "MIB",
    "NO_RULES",
    "PROTOCOL_ZONE_MINUTES",
    "DataRule",
    "EmptyRule",
    "FlowRules",
    "PauseRule",
    "check_id",
    "flow_document",
    "flow_rules_from",
    "parse_flow_rules",
    "protocol_text",
]

MIB = 1 << 20
PROTOCOL_ZONE_MINUTES = 480
"""East of UTC: the zone of a rule that names none."""

_DAY_MINUTES = 1440
_TEXT_BYTES = 65_536
_ENTRIES = 100
_FEWEST_LAG_M, _MOST_M = 21, 1 << 40
_LEAST_WAIT_MS, _MOST_WAIT_MS = 200, 86_400_000
_MOST_PAUSE_MS = 300_000
_TIME = re.compile("([01][0-9]|2[0-3]):([0-5][0-9])")
_ZONE = re.compile("([+-])([01][0-9]):([0-5][0-9])")


@value()
class DataRule:
    """Type 0. Minutes of the day in the rules' zone, both inclusive; more than ``lag_bytes`` behind: ``limit_bytes`` in
    a minute, then one question every ``wait_ms``."""

    start_minute: int
    end_minute: int
    lag_bytes: int
    limit_bytes: int
    wait_ms: int


@value()
class EmptyRule:
    """Type 1. After ``empties`` pulls without data in a row: ``wait_ms`` until the next."""

    empties: int
    wait_ms: int


@value()
class PauseRule:
    """Type 3. After a pull with data: so long until the next, in milliseconds."""

    plain_ms: int
    filtered_ms: int
    little_ms: int


@value()
class FlowRules:
    """What was parsed; ``zone_minutes`` east of UTC. ``data`` is in the order of the starts, ``empties`` the largest
    count first. What is empty, or None, does not limit."""

    data: tuple[DataRule, ...] = ()
    empties: tuple[EmptyRule, ...] = ()
    pause: PauseRule | None = None
    zone_minutes: int = PROTOCOL_ZONE_MINUTES

    def data_rule(self, lag_bytes: int, now_ms: int) -> DataRule | None:
        """The first rule that holds now (Unix time) for who is that far behind; None = as fast as it goes."""
        minute = (now_ms // 60_000 + self.zone_minutes) % _DAY_MINUTES
        for rule in self.data:
            if rule.start_minute <= minute <= rule.end_minute and lag_bytes >= rule.lag_bytes:
                return rule
        return None

    def empty_wait_ms(self, empties: int) -> int:
        """How long to wait after so many pulls without data in a row; 0 = no rule says."""
        return next((rule.wait_ms for rule in self.empties if empties >= rule.empties), 0)

    def pause_ms(self, filtered: bool, little: bool) -> int:
        """How long to wait after a pull with data."""
        if self.pause is None:
            return 0
        if not filtered:
            return self.pause.plain_ms
        return self.pause.little_ms if little else self.pause.filtered_ms


NO_RULES = FlowRules()


def check_id(rules: FlowRules) -> int:
    """The flowCheckId: another one for other rules, the same on every master; 0 for no rules, else 48 bits."""
    text = protocol_text(rules)
    return 0 if text == "[]" else 1 + (int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") >> 1)


def parse_flow_rules(text: str | bytes) -> FlowRules:
    """Rules in either form. InvalidInput names the record, the entry and the field that cannot be, counted from 1."""
    return flow_rules_from(loaded(text, "the flow control rules", _TEXT_BYTES))


def flow_rules_from(document: Any, what: str = "the flow control rules") -> FlowRules:
    """The same, of JSON that is loaded already; ``what``: how complaints call it."""
    zone, records = PROTOCOL_ZONE_MINUTES, document
    if isinstance(document, dict):
        known_fields(document, what, ("zone", "rules"))
        zone, records = _zone(document.get("zone"), what), document.get("rules")
    data: list[DataRule] = []
    empties: list[EmptyRule] = []
    pauses: list[PauseRule] = []
    seen: set[int] = set()
    for number, record in enumerate(list_in(records, what, 4), 1):
        where = f"{what}, record {number}"
        fields = object_in(record, where)
        known_fields(fields, where, ("type", "rule"))
        kind = int_in(fields, "type", where, 0, 3)
        if kind in seen:
            raise InvalidInput(f"{where}: type {kind} stands twice; put its entries into one record")
        seen.add(kind)
        if kind == 2:
            continue
        entries = list_in(fields.get("rule"), f"{where} (type {kind}): rule", 1 if kind == 3 else _ENTRIES)
        if not entries:
            raise InvalidInput(f"{where} (type {kind}): rule has no entry; leave the record out")
        for place, entry in enumerate(entries, 1):
            at = f"{where} (type {kind}), entry {place}"
            values = object_in(entry, at)
            if kind == 0:
                data.append(_data_rule(values, at))
            elif kind == 1:
                empties.append(_empty_rule(values, at))
            else:
                pauses.append(_pause_rule(values, at))
    data.sort(key=lambda rule: rule.start_minute)
    empties.sort(key=lambda rule: -rule.empties)
    return FlowRules(tuple(data), tuple(empties), pauses[0] if pauses else None, zone)


def _zone(zone: Any, what: str) -> int:
    if zone == "UTC":
        return 0
    if isinstance(zone, str) and (match := _ZONE.fullmatch(zone)):
        minutes = int(match[2]) * 60 + int(match[3])
        if minutes <= 14 * 60:
            return minutes if match[1] == "+" else -minutes
    raise InvalidInput(f'{what}: zone must be "UTC", or hours and minutes east of it like "+08:00", not {zone!r:.40}')


def _data_rule(entry: dict[str, Any], where: str) -> DataRule:
    known_fields(entry, where, ("start", "end", "dltInM", "limitInM", "freqInMs"))
    start, end = _minute(entry, "start", where), _minute(entry, "end", where)
    if start >= end:
        raise InvalidInput(
            f"{where}: start must be before end; write a rule over midnight as two, to 23:59, from 00:00"
        )
    lag = int_in(entry, "dltInM", where, _FEWEST_LAG_M, _MOST_M)
    limit = int_in(entry, "limitInM", where, 0, _MOST_M)
    return DataRule(start, end, lag * MIB, limit * MIB, int_in(entry, "freqInMs", where, _LEAST_WAIT_MS, _MOST_WAIT_MS))


def _minute(entry: dict[str, Any], name: str, where: str) -> int:
    text = entry.get(name)
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidInput(f'{where}: {name} must be a time like "08:00", not {text!r:.40}')
    return int(match[1]) * 60 + int(match[2])


def _empty_rule(entry: dict[str, Any], where: str) -> EmptyRule:
    known_fields(entry, where, ("zeroCnt", "freqInMs"))
    empties = int_in(entry, "zeroCnt", where, 1, (1 << 31) - 1)
    return EmptyRule(empties, int_in(entry, "freqInMs", where, 0, _MOST_WAIT_MS))


def _pause_rule(entry: dict[str, Any], where: str) -> PauseRule:
    known_fields(entry, where, ("normFreqInMs", "filterFreqInMs", "minDataFilterFreqInMs"))
    plain = int_in(entry, "normFreqInMs", where, 0, _MOST_PAUSE_MS) if "normFreqInMs" in entry else 0
    if "filterFreqInMs" not in entry and "minDataFilterFreqInMs" not in entry:
        return PauseRule(plain, 0, 0)
    filtered = int_in(entry, "filterFreqInMs", where, 0, _MOST_PAUSE_MS)
    little = int_in(entry, "minDataFilterFreqInMs", where, 0, _MOST_PAUSE_MS)
    if little < filtered:
        raise InvalidInput(
            f"{where}: minDataFilterFreqInMs, {little}, must not be less than filterFreqInMs, {filtered}"
        )
    return PauseRule(plain, filtered, little)


def protocol_text(rules: FlowRules) -> str:
    """The rules in the protocol's form, with the times of GMT+8."""
    moved = PROTOCOL_ZONE_MINUTES - rules.zone_minutes
    return json.dumps(_records(rules, moved), separators=(",", ":"))


def flow_document(rules: FlowRules) -> dict[str, Any]:
    """The rules in our own form, as ``flow_rules_from`` takes them."""
    hours, minutes = divmod(abs(rules.zone_minutes), 60)
    zone = f"{'-' if rules.zone_minutes < 0 else '+'}{hours:02}:{minutes:02}"
    return {"zone": zone, "rules": _records(rules, 0)}


def _records(rules: FlowRules, moved: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    if rules.data:
        records.append({"type": 0, "rule": [entry for rule in rules.data for entry in _entries(rule, moved)]})
    if rules.empties:
        entries = [{"zeroCnt": rule.empties, "freqInMs": rule.wait_ms} for rule in rules.empties]
        records.append({"type": 1, "rule": entries})
    if rules.pause is not None:
        names = ("normFreqInMs", "filterFreqInMs", "minDataFilterFreqInMs")
        values = (rules.pause.plain_ms, rules.pause.filtered_ms, rules.pause.little_ms)
        records.append({"type": 3, "rule": [dict(zip(names, values, strict=True))]})
    return records


def _entries(rule: DataRule, moved: int) -> list[dict[str, Any]]:
    """One rule, its times moved by so many minutes: two, if midnight is in it then. A minute for itself cannot be
    written (start must be before end): it is left out, so that nobody is limited without a rule."""
    start, end = (rule.start_minute + moved) % _DAY_MINUTES, (rule.end_minute + moved) % _DAY_MINUTES
    spans = [(start, end)] if start <= end else [(start, _DAY_MINUTES - 1), (0, end)]
    return [
        {
            "start": f"{first // 60:02}:{first % 60:02}",
            "end": f"{last // 60:02}:{last % 60:02}",
            "dltInM": rule.lag_bytes // MIB,
            "limitInM": rule.limit_bytes // MIB,
            "freqInMs": rule.wait_ms,
        }
        for first, last in spans
        if first < last
    ]
