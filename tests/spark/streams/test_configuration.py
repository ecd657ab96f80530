"""The TOML file of the services: what it becomes, and what is wrong with it in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from waltz_spark.streams.collector import CollectorSettings
from waltz_spark.streams.configuration import StreamsConfig, parse_config, read_config
from waltz_spark.streams.settings import CategoryRetention, Source, StreamSettings

from waltz_ray import compat
from waltz_ray.errors import ConfigError

GOOD = """
zookeeper = "127.0.0.1:2181"
interval_s = 2

[roots]
tokyo = "/logs/tokyo"
osaka = "hdfs://osaka/logs"

[collectors.c1]
root = "tokyo"
category = "bank"
cluster = "bank"
partitions = [0, 2]
format = "jsonl"

[services.far]
kind = "mirror"
root = "osaka"
sources = ["all"]

[services.all]
kind = "merged"
root = "tokyo"
sources = ["local", "kyoto"]
consumers = ["far", "elsewhere"]
retention_hours = 5
interval_s = 0.5

[services.local]
kind = "local"
root = "tokyo"
consumers = ["all"]

[outside]
kyoto = "/logs/kyoto"
elsewhere = "/anywhere"
"""


def parsed(text: str) -> StreamsConfig:
    return parse_config(compat.tomllib.loads(text))


def test_a_file() -> None:
    config = parsed(GOOD)
    assert config.zookeeper == "127.0.0.1:2181"
    assert config.collectors == (
        CollectorSettings("c1", "/logs/tokyo", "bank", cluster="bank", partitions=(0, 2), format="jsonl"),
    )
    assert [each.name for each in config.services] == ["local", "all", "far"]
    assert config.services[1] == StreamSettings(
        "merged",
        "all",
        "/logs/tokyo",
        (Source("local", "/logs/tokyo"), Source("kyoto", "/logs/kyoto")),
        ("far", "elsewhere"),
        retention_hours=5,
        also_kept=(CategoryRetention((), 72),),
        interval_s=0.5,
    )
    assert config.services[0].interval_s == 2
    assert config.roots == ["/logs/tokyo", "hdfs://osaka/logs", "/logs/kyoto"]
    assert config.only(["far", "c1"]).names == ["c1", "far"]
    assert config.only([]) == config
    assert config.only(["far"]).cluster == "bank"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("interval_s = 2", "intervall_s = 2", "unknown key 'intervall_s'; did you mean 'interval_s'?"),
        ("interval_s = 2", 'interval_s = "2"', "interval_s must be a number, not '2'"),
        ("retention_hours = 5", "retention_days = 5", r"\[services.all\] unknown key 'retention_days'; did you mean"),
        ("retention_hours = 5", 'layout = "dokument"', "layout must be parts or document, not 'dokument'"),
        ("retention_hours = 5", "retention_hours = true", "retention_hours must be a whole number, not True"),
        ("retention_hours = 5", "retention_hours = 0", "retention_hours must be 1 to"),
        ("partitions = [0, 2]", 'partitions = ["0"]', r"partitions must be a list of whole numbers, not \['0'\]"),
        ('format = "jsonl"', 'format = "csv"', "format must be one of parquet, jsonl, not 'csv'"),
        ('category = "bank"\n', "", r"collector c1: category ''"),
        ('root = "tokyo"\ncategory', 'root = "tokio"\ncategory', "not 'tokio'; did you mean 'tokyo'"),
        ('consumers = ["all"]', 'consumers = ["al"]', "there is no consumer 'al'; did you mean 'all'"),
        ('consumers = ["all"]', "", r"all takes from local, which does not announce to it; add it to the consumers"),
        ('consumers = ["all"]', 'consumers = ["all", "far"]', "local announces to far, which does not take from it"),
        ('sources = ["all"]', 'sources = ["every"]', r"\[services.far\] there is no source 'every'"),
        ('sources = ["all"]', "", "a mirror needs exactly one source"),
        ('kind = "merged"', 'kind = "mirror"', "a mirror needs exactly one source"),
        ('kind = "merged"', 'kind = "marged"', "kind must be local, merged or mirror"),
        ("[collectors.c1]", "[collectors.all]", "all is a collector and a service"),
        ("[collectors.c1]", '[collectors."c.1"]', "name 'c.1' must be letters"),
        ('root = "tokyo"\ncategory', 'root = "osaka"\ncategory', "collector c1 writes to hdfs://osaka/logs, where"),
        ('kyoto = "/logs/kyoto"', "kyoto = 3", "the root of kyoto must be a directory"),
        ('sources = ["local", "kyoto"]', 'sources = ["far"]', "all, far|far, all"),
        (
            "[services.local]",
            '[services.second]\nkind = "local"\nroot = "tokyo"\ncategories = ["x"]\n[services.local]',
            "second and local would both take the same categories from /logs/tokyo",
        ),
        ("[services.local]", "[[services.local]]", "services.local must be a section"),
    ],
)
def test_what_is_wrong(old: str, new: str, problem: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=problem) as caught:
        parsed(GOOD.replace(old, new))
    assert "\n" not in str(caught.value)


def test_a_categorys_retention_is_the_larger_of_local_and_merged() -> None:
    """On one root, whichever of them is run; services of another root, or of other categories, have no say."""
    assert "retention_hours = 5\n" in GOOD
    services = {each.name: each for each in parsed(GOOD.replace("hours = 5", "hours = 500")).only([]).services}
    assert {name: each.retention_of("bank") for name, each in services.items()} == {"local": 500, "all": 500, "far": 72}
    alone = parsed(GOOD).only(["all"]).services[0]
    assert (alone.retention_hours, alone.retention_of("bank")) == (5, 72)
    text = GOOD.replace("hours = 5", 'hours = 500\ncategories = ["clicks"]')
    local = next(each for each in parsed(text).services if each.name == "local")
    assert (local.retention_of("bank"), local.retention_of("clicks")) == (72, 500)


def test_a_mirror_of_a_mirror() -> None:
    text = GOOD.replace("[services.far]", '[services.far]\nconsumers = ["farther"]').replace(
        "[outside]", '[services.farther]\nkind = "mirror"\nroot = "osaka"\nsources = ["far"]\n[outside]'
    )
    assert [each.name for each in parsed(text).services] == ["local", "all", "far", "farther"]


def test_kinds_must_fit() -> None:
    text = '[roots]\na = "/a"\n'
    for name, kind, source, consumer in (("x", "local", "", "y"), ("y", "mirror", "x", "")):
        text += f'[services.{name}]\nroot = "a"\nkind = "{kind}"\n'
        text += f'sources = ["{source}"]\n' if source else ""
        text += f'consumers = ["{consumer}"]\n' if consumer else ""
    with pytest.raises(ConfigError, match="y, a mirror, takes from a merged or mirror; x is a local"):
        parsed(text)


def test_an_unknown_service() -> None:
    with pytest.raises(ConfigError, match="there is no service 'loca' in the file; did you mean 'local'"):
        parsed(GOOD).only(["loca"])


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml cannot be read"):
        read_config(tmp_path / "no.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path)
    path = tmp_path / "streams.toml"
    for content, problem in ((b"[", "is not TOML"), (b"\xff", "is not TOML"), (b"", "there is no"), (b"x = 1", "'x'")):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=f"streams.toml.*{problem}"):
            read_config(path)
