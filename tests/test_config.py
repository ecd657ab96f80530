"""Configuration refuses what it does not know, by name."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
from pathlib import Path

import pytest

from waltz_ray import config
from waltz_ray.config import (
    ClientConfig,
    ClusterConfig,
    DiskConfig,
    HttpConfig,
    KvConfig,
    ServerConfig,
    StorageConfig,
    TopicConfig,
    build,
)
from waltz_ray.errors import ConfigError

CONFIGS = [StorageConfig, ServerConfig, ClientConfig, KvConfig, TopicConfig, HttpConfig, DiskConfig, ClusterConfig]


def test_an_unknown_key_names_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'segment_size_byte'; did you mean 'segment_size_bytes'\?"):
        build(StorageConfig, {"segment_size_byte": 5})
    assert build(StorageConfig, {"segment_size_bytes": 5}).segment_size_bytes == 5


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (StorageConfig, {"segment_size_bytes": 0}),
        (StorageConfig, {"index_flush_interval": "many"}),
        (StorageConfig, {"tls_certificate": "/a.pem"}),
        (StorageConfig, {"tls_authority": "/a.pem"}),
        (StorageConfig, {"tls_only": True, "tls_certificate": "/a.pem", "tls_key": "/a.key"}),
        (ServerConfig, {"port": 70_000}),
        (ServerConfig, {"lock_table_size": True}),
        (ClientConfig, {"outstanding_appends": -1}),
        (KvConfig, {"dialect": "2013"}),
        (KvConfig, {"tls_key": "/a.key"}),
        (KvConfig, {"lease_margin_ms": 1500}),
        (TopicConfig, {"max_message_bytes": 1 << 30}),
        (TopicConfig, {"tls_certificate": "/a.pem"}),
        (TopicConfig, {"lease_margin_ms": 1500}),
        (TopicConfig, {"client_ms": 999}),
        (ClusterConfig, {"name": "a b"}),
        (ClusterConfig, {"name": "zookeeper"}),
        (ClusterConfig, {"name": ".."}),
        (HttpConfig, {"port": 65536}),
        (HttpConfig, {"enabled": 1}),
        (HttpConfig, {"tls_clients": "/a.pem"}),
        (DiskConfig, {"directory": "relative"}),
        (DiskConfig, {"resource": 1}),
        (ClusterConfig, {"disks": (DiskConfig(),)}),
        (ClusterConfig, {"disks": ({}, {}, {})}),
        (ClusterConfig, {"disks": [DiskConfig()] * 3}),
        (ClusterConfig, {"storage": {}}),
        (ClusterConfig, {"name": 7}),
        (ClusterConfig, {"secret_file": 7}),
        (ClusterConfig, {"directory": Path("/d")}),
        (ClusterConfig, {"partitions": 4.0}),
        (ClusterConfig, {"replication": 3.0}),
        (StorageConfig, {"journal_bytes": 1.5}),
        (StorageConfig, {"tls_certificate": 7, "tls_key": 7}),
        (ServerConfig, {"host": None}),
        (ClientConfig, {"share_connections": 1}),
        (ClientConfig, {"linger_ms": True}),
        (ClientConfig, {"linger_ms": float("nan")}),
        (ClusterConfig, {"partitions": 0}),
        (ClusterConfig, {"replication": 5}),
        (ClusterConfig, {"replicas": 5, "replication": 4}),
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
        if field.name not in ("storage", "server", "kv", "topics", "http"):
            assert f"    {field.name}: " in body
            following = body.split(f"    {field.name}: ", 1)[1].split("\n", 2)[1].strip()
            assert following.startswith('"""'), f"{kind.__name__}.{field.name} has no explanation"


CLIENT_PAGE = Path(__file__).parents[1] / "docs" / "client.md"
_TABLE = re.compile(r"(<!-- settings: generated .*? -->\n)(.*?)(<!-- end of settings -->)", re.DOTALL)


def client_settings() -> str:
    """Every field of ClientConfig, as the source has it: name, default with its unit, meaning."""
    [kind] = [
        node
        for node in ast.parse(inspect.getsource(config)).body
        if isinstance(node, ast.ClassDef) and node.name == "ClientConfig"
    ]
    meanings = {
        field.target.id: " ".join(ast.literal_eval(meaning.value).split()).replace("``", "`")
        for field, meaning in itertools.pairwise(kind.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(meaning, ast.Expr)
    }
    lines = ["| `ClientConfig` | default | what it is |", "|---|---|---|"]
    for field in dataclasses.fields(ClientConfig):
        unit, default = field.name.rpartition("_")[2], f"{field.default}".removesuffix(".0")
        if unit == "bytes":
            unit, default = "MiB", f"{field.default / (1 << 20):g}"  # type: ignore[operator]
        elif isinstance(field.default, bool):
            unit, default = "", str(field.default).lower()
        lines.append(f"| `{field.name}` | {f'{default} {unit}'.strip()} | {meanings[field.name]} |")
    return "\n".join(lines) + "\n"


def test_the_page_of_the_client_has_every_setting(request: pytest.FixtureRequest) -> None:
    text = CLIENT_PAGE.read_text()
    if request.config.getoption("--rewrite"):
        text = _TABLE.sub(lambda found: found[1] + client_settings() + found[3], text)
        CLIENT_PAGE.write_text(text)
    found = _TABLE.search(text)
    assert found is not None
    assert found[2] == client_settings(), "write it anew: pytest tests/test_config.py --rewrite"


_UNITS = {"": 1, " MiB": 1024 * 1024, " MB": 1024 * 1024, " ms": 1, " s": 1000}
_VALUE = r"(\d[\d ,]*)((?: MiB| MB| ms| s)?)"


def test_pages_tell_the_defaults_there_are() -> None:
    """`name` (value) or value (`name`), where the name is that of a setting."""
    defaults: dict[str, set[object]] = {}
    for kind in CONFIGS:
        for field in dataclasses.fields(kind):
            defaults.setdefault(field.name, set()).add(field.default)
    told, wrong = set(), []
    for page in sorted((Path(__file__).parents[1] / "docs").glob("*.md")):
        text = page.read_text()
        found = [(name, value, unit) for name, value, unit in re.findall(rf"`([a-z_]+)` \({_VALUE}\)", text)]
        found += [(name, value, unit) for value, unit, name in re.findall(rf"{_VALUE} \(`([a-z_]+)`\)", text)]
        for name, value, unit in found:
            number = int(re.sub(r"[ ,]", "", value)) * _UNITS[unit]
            if name in defaults:
                told.add(name)
                if number not in defaults[name]:
                    wrong.append(f"{page.name}: {name} is {defaults[name]}, not {number}")
    assert wrong == []
    assert told >= {"lock_table_size", "replica_lag_bytes", "checkpoint_interval", "journal_bytes", "hello_timeout_ms"}
