"""The deployment file: what it says is had, and what is wrong with it is told with its line."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from waltz_ray.config import ClusterConfig, DiskConfig, HttpConfig, ServerConfig
from waltz_ray.deployment.file import RayConfig, SpaceConfig, parse, read
from waltz_ray.errors import ConfigError, InvalidInput

ROOT = Path(__file__).parents[2]
TOP = "directory: /x\n"


def test_what_it_says_is_had() -> None:
    text = """
name: prod
directory: /data
disks:
  - {directory: /d0, resource: a}
  - directory: /d1
  - {}
replication: 3
server:
  port: 9000
http: {enabled: false}
ray: {address: "", deadline_s: 60}
spaces:
  log: {retention_bytes: 5}
  orders: {partitions: 8, retention_ms: 1_000}
  users: {kind: kv}
"""
    found = parse(text, "f")
    disks = (DiskConfig("/d0", "a"), DiskConfig("/d1"), DiskConfig())
    assert found.cluster == ClusterConfig(
        "prod",
        "/data",
        replicas=3,
        replication=3,
        disks=disks,
        server=ServerConfig(port=9000),
        http=HttpConfig(enabled=False),
    )
    assert found.ray == RayConfig("", 60)
    assert found.spaces["orders"] == SpaceConfig("log", 8, retention_ms=1000)
    assert found.space_settings("log") == {"retention_bytes": 5}
    assert found.lines["server.port"] == 10
    assert not found.says("server.host")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "the file has to be keys and values"),
        ("- a", 1, "the file has to be keys and values"),
        (TOP + "a: [", 2, "this is not YAML: expected the node content"),
        ("a: \x01", 1, "this is not YAML: unacceptable character"),
        ("? [a]\n: 1", 1, "a key has to be a word"),
        (TOP + "sever:\n  port: 1", 2, "unknown key 'sever'; did you mean 'server'?"),
        (TOP + "server:\n  prot: 1", 3, "server: unknown key 'prot'; did you mean 'port'?"),
        (TOP + "http:\n  wxyz: 1", 3, "http: unknown key 'wxyz'; known keys: enabled, host"),
        (TOP + "disks:\n- {}\n- path: /y", 4, "disks[1]: unknown key 'path'; known keys: directory, resource"),
        (TOP + "spaces:\n  a: {parttions: 1}", 3, "spaces.a: unknown key 'parttions'; did you mean 'partitions'?"),
        (TOP + "server:\n  port: 70000", 3, "server.port must be a number from 0 to 65535, not 70000"),
        (TOP + "storage:\n  segment_size_bytes: 1", 3, "storage.segment_size_bytes has to be 1048576 at the least"),
        (TOP + "server:\n  checkpoint_interval: 1", 3, "server.checkpoint_interval has to be 1000 at the least"),
        (TOP + "name: a b", 2, "name must consist of letters"),
        (TOP + "servers: two", 2, "servers has to be a whole number, not two"),
        (TOP + "servers: 1.5", 2, "servers has to be a whole number, not 1.5"),
        (TOP + "servers: true", 2, "servers has to be a whole number, not true"),
        (TOP + "servers: '2'", 2, "servers has to be a whole number, not 2"),
        (TOP + "servers: [2]", 2, "servers has to be a whole number, not a list"),
        (TOP + "servers: !!python/name:os.system 1", 2, "servers has to be a whole number, not '1'"),
        (TOP + "name: 7", 2, "name has to be text, not 7; put it in quotes"),
        (TOP + "zookeeper: 10:20", 2, "zookeeper has to be text, not 10:20; put it in quotes"),
        (TOP + "http: {enabled: 'no'}", 2, "http.enabled has to be true or false, not no"),
        (TOP + "server:", 2, "server has to be keys and values, not nothing"),
        (TOP + "disks: 3", 2, "disks has to be a list, not '3'"),
        (TOP + "spaces: [a]", 2, "spaces has to be keys and values, not a list"),
        (TOP + "replicas: 2\ndisks: [{}]", 3, "disks must be one for each of the 2 replicas, or none at all, not 1"),
        (TOP + "disks:\n- directory: y", 3, "disks[0].directory must be an absolute path, not 'y'"),
        (TOP + "kv:\n  session_ms: 500\n  lease_margin_ms: 900", 4, "kv.lease_margin_ms (900) must be less than"),
        (TOP + "replication: 5", 2, "replication must be 3, 5 or 0"),
        (TOP + "ray: {deadline_s: 0}", 2, "ray.deadline_s must be a number from 1"),
        ("name: a\ndirectory: x", 2, "directory has to be an absolute path"),
        ("name: a", 1, "directory has to be an absolute path"),
        (TOP + "directory: /y", 2, "directory is there twice, first in line 1"),
        (TOP + "server: {port: 1, port: 2}", 2, "server.port is there twice, first in line 2"),
        (TOP + "spaces:\n  o: {}", 3, "spaces.o: a space of kind log has as many partitions as you say"),
        (TOP + "spaces:\n  O: {partitions: 1}", 3, "spaces.O: 'O' cannot name a space"),
        (TOP + "spaces:\n  k: {kind: kv, partitions: 3}", 3, "spaces.k: a space of kind kv has 1, 2, 4"),
        (TOP + "spaces:\n  k: {kind: kv, retention_ms: 3}", 3, "spaces.k: retention would give up items"),
        (TOP + "spaces:\n  k: {kind: cv}", 3, "spaces.k: there are spaces of the kinds"),
        (TOP + "spaces:\n  o: {partitions: 1, max_message_bytes: 9}", 3, "spaces.o: max_message_bytes is of spaces"),
        (TOP + "spaces:\n  log: {partitions: 9}", 3, "spaces.log: it is of kind log, and has the partitions that"),
        (TOP + "security: {}", 2, "'security': there is no such section: the cluster's secret is secret_file"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(text, "a.yaml")
    assert str(refused.value).startswith(f"a.yaml:{line}: {problem}")
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.yaml cannot be read: No such file"):
        read(tmp_path / "none.yaml")
    (tmp_path / "latin").write_bytes(b"name: \xe4")
    with pytest.raises(ConfigError, match=r"latin: this is not UTF-8 \(byte 6\)"):
        read(tmp_path / "latin")


def test_every_section_of_the_configuration_has_its_place() -> None:
    """A new section of ``ClusterConfig`` needs nothing here."""
    for section in fields(ClusterConfig):
        if section.name in ("storage", "server", "kv", "topics", "http"):
            kind = type(getattr(ClusterConfig(), section.name))
            for each in fields(kind):
                value = yaml.safe_dump({section.name: {each.name: each.default}})
                if not each.name.startswith("tls_"):  # which go together
                    assert parse(TOP + value, "f").says(f"{section.name}.{each.name}")


def test_the_file_that_is_shipped() -> None:
    """As it is, and with everything that it only shows."""
    path = ROOT / "deploy/cluster.yaml"
    found = read(path)
    assert (found.cluster.name, list(found.spaces)) == ("waltz", ["orders", "clicks"])
    shown = path.read_text().replace("replicas: 3 ", "# ").replace("\n#: ", "\n")
    whole = parse(shown, "shown")
    assert whole.cluster.disks[2].resource == "disk-c"
    assert whole.cluster.topics.tls_key == "/etc/waltz/topics.key"
    assert whole.spaces["users"].kind == "kv"
    assert whole.cluster.storage == found.cluster.storage, "what is only shown is the default"
    assert whole.cluster.server == found.cluster.server
