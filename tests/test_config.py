"""Configuration refuses what it does not know, by name."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from waltz_ray import config
from waltz_ray.config import ClientConfig, ClusterConfig, ServerConfig, StorageConfig, build
from waltz_ray.errors import ConfigError

CONFIGS = [StorageConfig, ServerConfig, ClientConfig, ClusterConfig]


def test_an_unknown_key_names_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'segment_size_byte'; did you mean 'segment_size_bytes'\?"):
        build(StorageConfig, {"segment_size_byte": 5})
    assert build(StorageConfig, {"segment_size_bytes": 5}).segment_size_bytes == 5


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (StorageConfig, {"segment_size_bytes": 0}),
        (StorageConfig, {"index_flush_interval": "many"}),
        (ServerConfig, {"port": 70_000}),
        (ServerConfig, {"lock_table_size": True}),
        (ClientConfig, {"outstanding_appends": -1}),
        (ClusterConfig, {"name": "a b"}),
        (ClusterConfig, {"partitions": 0}),
    ],
)
def test_a_value_out_of_range_is_refused_at_once(kind: type, values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        build(kind, values)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_field_says_what_it_means(kind: type) -> None:
    source = inspect.getsource(config)
    body = source[source.index(f"class {kind.__name__}") :]
    for field in dataclasses.fields(kind):
        if field.name not in ("storage", "server"):
            assert f"    {field.name}: " in body
            following = body.split(f"    {field.name}: ", 1)[1].split("\n", 2)[1].strip()
            assert following.startswith('"""'), f"{kind.__name__}.{field.name} has no explanation"
