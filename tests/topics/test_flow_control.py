"""Flow control: the rules' text, which rule holds when, and the rate that comes of it."""

from __future__ import annotations

import json

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.errors import InvalidInput
from waltz_ray.topics import flow_control
from waltz_ray.topics.flow_control import FlowMeter
from waltz_ray.topics.flow_rules import (
    MIB,
    NO_RULES,
    DataRule,
    EmptyRule,
    FlowRules,
    PauseRule,
    check_id,
    flow_document,
    flow_rules_from,
    parse_flow_rules,
    protocol_text,
)
from waltz_ray.topics.flow_table import FlowTable, decode_flow_table, encode_flow_table

OF_THE_PROTOCOL = (
    '[{"type":0,"rule":[{"start":"08:00","end":"17:59","dltInM":1024,"limitInM":20,"freqInMs":1000}]},'
    '{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300}]},'
    '{"type":3,"rule":[{"normFreqInMs":0,"filterFreqInMs":100,"minDataFilterFreqInMs":400}]}]'
)
LAG = 2048 * MIB
EIGHT_THERE = 1_700_006_400_000  # 2023-11-15 00:00 UTC, 08:00 of GMT+8
MINUTE = 60_000


def data_rule(**changes: object) -> str:
    entry = {"start": "00:00", "end": "23:59", "dltInM": 1024, "limitInM": 20, "freqInMs": 1000, **changes}
    return json.dumps([{"type": 0, "rule": [{name: of for name, of in entry.items() if of is not None}]}])


ALWAYS = parse_flow_rules(data_rule())


def test_t45_the_rules_of_the_protocol_are_read_and_written() -> None:
    rules = parse_flow_rules(OF_THE_PROTOCOL)
    assert rules == FlowRules(
        (DataRule(480, 1079, 1024 * MIB, 20 * MIB, 1000),), (EmptyRule(3, 300),), PauseRule(0, 100, 400), 480
    )
    assert protocol_text(rules) == OF_THE_PROTOCOL
    assert parse_flow_rules("[]") == NO_RULES
    assert parse_flow_rules('[{"type":2,"rule":[{"start":"12:00","dltStInM":20480}]}]') == NO_RULES


@pytest.mark.parametrize(
    ("now_ms", "lag", "holds"),
    [
        (EIGHT_THERE - 1, LAG, False),
        (EIGHT_THERE, LAG, True),
        (EIGHT_THERE, 1024 * MIB, True),
        (EIGHT_THERE, 1024 * MIB - 1, False),
        (EIGHT_THERE + 600 * MINUTE - 1, LAG, True),
        (EIGHT_THERE + 600 * MINUTE, LAG, False),
        (EIGHT_THERE + 1440 * MINUTE, LAG, True),
    ],
)
def test_t45_times_are_of_gmt_8_unless_a_zone_is_named_and_both_ends_are_inside(
    now_ms: int, lag: int, holds: bool
) -> None:
    rules = parse_flow_rules(OF_THE_PROTOCOL)
    assert (rules.data_rule(lag, now_ms) is not None) == holds
    here = parse_flow_rules(json.dumps({"zone": "UTC", "rules": json.loads(OF_THE_PROTOCOL)}))
    assert (here.data_rule(lag, now_ms + 480 * MINUTE) is not None) == holds


def test_t45_clients_are_sent_the_times_of_gmt_8_over_midnight_in_two() -> None:
    own = {"zone": "-03:30", "rules": json.loads(data_rule(start="08:00", end="20:00"))}
    rules = flow_rules_from(own)
    sent = parse_flow_rules(protocol_text(rules))
    spans = [(rule.start_minute, rule.end_minute) for rule in sent.data]
    assert spans == [(0, 7 * 60 + 30), (19 * 60 + 30, 1439)]
    for minute in range(0, 1440):
        at = EIGHT_THERE + minute * MINUTE
        assert (rules.data_rule(LAG, at) is None) == (sent.data_rule(LAG, at) is None), minute
    assert flow_rules_from(flow_document(rules)) == rules


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no JSON"),
        ("[", "no JSON"),
        ("[" * 60_000, "nested too deeply"),
        (" " * 70_000, "65536 are the most"),
        ("9" * 6_000, "JSON|list"),
        ('{"zone":"UTC"}', "list"),
        ('{"zone":"Mars","rules":[]}', "zone must be"),
        ('{"zone":"+15:00","rules":[]}', "zone must be"),
        ('{"zone":"UTC","rule":[]}', "'rule'"),
        ("[7]", "record 1 must be an object"),
        ('[{"rule":[]}]', "record 1 lacks type"),
        ('[{"type":4,"rule":[]}]', "record 1: type"),
        ('[{"type":true,"rule":[]}]', "record 1: type"),
        ('[{"type":1,"rule":[]}]', r"record 1 \(type 1\): rule has no entry"),
        ('[{"type":1,"rule":7}]', r"record 1 \(type 1\): rule must be a list"),
        ('[{"type":1,"rule":[{"zeroCnt":0,"freqInMs":1}]}]', r"record 1 \(type 1\), entry 1: zeroCnt"),
        ('[{"type":1,"rule":[{"zeroCnt":1}]}]', "entry 1 lacks freqInMs"),
        ('[{"type":1,"rule":[{"zeroCnt":1,"freqInMs":1e3}]}]', "freqInMs must be a whole number"),
        ('[{"type":1,"rule":[{"zeroCnt":1,"freqInMs":1}]},{"type":1,"rule":[]}]', "record 2: type 1 stands twice"),
        ('[{"type":3,"rule":[{"filterFreqInMs":10}]}]', "lacks minDataFilterFreqInMs"),
        ('[{"type":3,"rule":[{"filterFreqInMs":10,"minDataFilterFreqInMs":9}]}]', "must not be less"),
        ('[{"type":3,"rule":[{"normFreqInMs":300001}]}]', "entry 1: normFreqInMs"),
        ('[{"type":3,"rule":[{},{}]}]', "2 entries, 1 are the most"),
        (data_rule(start="8:00"), "entry 1: start must be a time"),
        (data_rule(end="24:00"), "entry 1: end must be a time"),
        (data_rule(start="23:59"), "start must be before end"),
        (data_rule(dltInM=20), "entry 1: dltInM"),
        (data_rule(limitInM=-1), "entry 1: limitInM"),
        (data_rule(freqInMs=199), "entry 1: freqInMs"),
        (data_rule(freqInMs="1000"), "entry 1: freqInMs"),
        (data_rule(limitInM=None), "entry 1 lacks limitInM"),
        (data_rule(limit=5), "no field 'limit'"),
    ],
)
def test_t45_what_cannot_be_is_named_with_its_record_and_field(text: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=named) as refused:
        parse_flow_rules(text)
    assert len(str(refused.value)) < 400


def consumed(meter: FlowMeter, rules: FlowRules, minutes: int, batch: int, lag: int = LAG) -> tuple[int, int]:
    """What a consumer gets that asks again when it is told to, 5 ms after each batch: bytes, and refusals."""
    now, end, read, refused = EIGHT_THERE, EIGHT_THERE + minutes * MINUTE, 0, 0
    while now < end:
        wait = meter.wait_ms(rules, lag, now)
        if wait:
            refused += 1
            now += wait
        else:
            meter.pulled(rules, batch, False, now)
            read += batch
            now += 5
    return read, refused


def rates_are_the_rules() -> None:
    for limit, batch, wait in (
        (20, MIB, 1000),
        (20, 700_000, 5000),
        (1, 3 * MIB, 1000),
        (3, 1000, 200),
        (50, MIB, 30_000),
    ):
        rules = parse_flow_rules(data_rule(limitInM=limit, freqInMs=wait))
        read, _ = consumed(FlowMeter(), rules, 30, batch)
        assert read == pytest.approx(30 * limit * MIB, rel=0.1), (limit, batch, wait)
        first, _ = consumed(FlowMeter(), rules, 1, batch)
        assert first <= limit * MIB + batch


def test_t45_the_measured_rate_is_the_rules() -> None:
    rates_are_the_rules()


def test_t45_who_is_over_the_limit_is_told_when_to_come_again() -> None:
    meter = FlowMeter()
    assert meter.wait_ms(ALWAYS, LAG, EIGHT_THERE) == 0
    meter.pulled(ALWAYS, 20 * MIB, False, EIGHT_THERE)
    assert meter.wait_ms(ALWAYS, LAG, EIGHT_THERE + 1) == 1000
    assert meter.wait_ms(ALWAYS, LAG, EIGHT_THERE + MINUTE - 10) == 10
    assert meter.wait_ms(ALWAYS, LAG, EIGHT_THERE + MINUTE) == 0
    nothing = parse_flow_rules(data_rule(limitInM=0))
    assert FlowMeter().wait_ms(nothing, LAG, EIGHT_THERE) == 1000


def test_t45_who_is_not_behind_is_not_limited_and_owes_nothing_later() -> None:
    meter = FlowMeter()
    read, refused = consumed(meter, ALWAYS, 1, MIB, lag=1000)
    assert (refused, read) == (0, 12_000 * MIB)
    assert meter.wait_ms(ALWAYS, LAG, EIGHT_THERE + MINUTE) == 0


def test_t45_another_group_is_unaffected() -> None:
    table = FlowTable(NO_RULES, {"slow": ALWAYS})
    slow, fast = FlowMeter(), FlowMeter()
    read, refused = consumed(slow, table.rules_of("slow"), 5, MIB)
    assert refused > 0
    assert read <= 101 * MIB
    read, refused = consumed(fast, table.rules_of("fast"), 5, MIB)
    assert (refused, read) == (0, 60_000 * MIB)


def test_t46_empty_pulls_slow_down_and_data_ends_that() -> None:
    rules = parse_flow_rules('[{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300},{"zeroCnt":8,"freqInMs":1000}]}]')
    meter, now = FlowMeter(), EIGHT_THERE
    waits = []
    for _ in range(10):
        meter.pulled(rules, 0, False, now)
        wait = meter.wait_ms(rules, 0, now)
        waits.append(wait)
        now += wait
        assert meter.wait_ms(rules, 0, now) == 0
    assert waits == [0, 0, 300, 300, 300, 300, 300, 1000, 1000, 1000]
    meter.pulled(rules, 10, False, now)
    assert meter.wait_ms(rules, 0, now) == 0
    meter.pulled(rules, 0, False, now)
    assert meter.wait_ms(rules, 0, now) == 0


def test_t46_pulls_with_filters_wait_longer_those_that_leave_little_longest() -> None:
    rules = parse_flow_rules(
        '[{"type":3,"rule":[{"normFreqInMs":10,"filterFreqInMs":100,"minDataFilterFreqInMs":400}]}]'
    )
    for read, filtered, wait in ((9, False, 10), (MIB, False, 10), (MIB, True, 100), (9, True, 400)):
        meter = FlowMeter()
        meter.pulled(rules, read, filtered, EIGHT_THERE)
        assert meter.wait_ms(rules, 0, EIGHT_THERE) == wait
        assert meter.wait_ms(rules, 0, EIGHT_THERE + wait - 1) == 1
        meter.forget_waits()
        assert meter.wait_ms(rules, 0, EIGHT_THERE) == 0


def test_t45_ids_change_with_the_rules_and_only_news_are_sent() -> None:
    table = FlowTable(ALWAYS, {"own": parse_flow_rules('[{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300}]}]')})
    (default_id, default_text), (group_id, group_text) = table.news("own", -2, -2)
    assert parse_flow_rules(default_text) == ALWAYS
    assert parse_flow_rules(group_text) == table.groups["own"]
    assert len({default_id, group_id, 0}) == 3
    assert table.news("own", default_id, group_id) == ((default_id, ""), (group_id, ""))
    assert table.news("none", default_id, group_id) == ((default_id, ""), (0, ""))
    assert check_id(parse_flow_rules(data_rule(limitInM=21))) != default_id
    assert check_id(parse_flow_rules(data_rule().replace(" ", "  "))) == default_id
    assert table.rules_of("own").data == ALWAYS.data
    assert table.rules_of("own").empties == table.groups["own"].empties
    assert table.rules_of("none") == ALWAYS


def test_t45_the_table_in_zookeeper() -> None:
    table = FlowTable(ALWAYS, {"own": parse_flow_rules(OF_THE_PROTOCOL)})
    assert decode_flow_table(encode_flow_table(table)) == table
    assert decode_flow_table(b"{}") == FlowTable()
    for wrong, named in (
        (b"[]", "must be an object"),
        (b'{"groups":{"g":[{"type":9}]}}', "group g, record 1: type"),
        (b'{"group":{}}', "no field 'group'"),
        (b'{"groups":{"":[]}}', "name of a group"),
        (b"\xff", "no JSON"),
        (b" " * (1 << 20), "are the most"),
    ):
        with pytest.raises(InvalidInput, match=named):
            decode_flow_table(wrong)
    with pytest.raises(InvalidInput, match="are the most"):
        encode_flow_table(FlowTable(NO_RULES, {f"g{n}": NO_RULES for n in range(4097)}))


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("is_over", lambda read, rule: False),
        ("left_over", lambda read, minutes, rule: 0),
        ("left_over", lambda read, minutes, rule: read),
    ],
)
def test_a_broken_rate_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str, broken: object) -> None:
    break_rule(monkeypatch, flow_control, rule, broken)
    with pytest.raises(AssertionError):
        rates_are_the_rules()


def test_rules_hold_by_the_time_of_the_day_and_waits_end_by_a_clock_that_nobody_sets() -> None:
    rules, meter, year = parse_flow_rules(data_rule(start="08:00", end="17:59")), FlowMeter(), 365 * 24 * 60 * MINUTE
    assert meter.wait_ms(rules, LAG, 0, EIGHT_THERE) == 0
    meter.pulled(rules, 20 * MIB, False, 0)
    assert meter.wait_ms(rules, LAG, 1, EIGHT_THERE + year) == 1000, "no minute is over, though a year seems to be"
    assert meter.wait_ms(rules, LAG, MINUTE, EIGHT_THERE - year) == 0, "a minute is over, whatever the clock shows"
    meter.pulled(rules, 20 * MIB, False, MINUTE)
    assert meter.wait_ms(rules, LAG, MINUTE + 1, EIGHT_THERE - 1) == 0, "it is not eight there yet"
