"""Configuration: frozen dataclasses; every field says meaning, unit, default and why that default.

``build(SomeConfig, {...})`` makes one from plain keys (a TOML or JSON object, CLI options) and refuses
unknown keys by naming the nearest known one. Every ``__post_init__`` validates, so an instance is valid.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from waltz_ray.errors import ConfigError

__all__ = [
    "ClientConfig",
    "ClusterConfig",
    "DiskConfig",
    "HttpConfig",
    "KvConfig",
    "PORTS_OF_AN_ACTOR",
    "SECTIONS",
    "ServerConfig",
    "StorageConfig",
    "TopicConfig",
    "build",
    "within_bounds",
]

Config = TypeVar("Config")


def build(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """An instance of ``kind`` from plain keys; ConfigError names an unknown key and its nearest neighbour."""
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(known)}"
            raise ConfigError(f"{kind.__name__}: unknown key {key!r}{hint}")
    return kind(**values)


def _require(config: object, name: str, low: float, high: float) -> None:
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"{type(config).__name__}.{name} must be a number from {low} to {high}, not {value!r}")


_TYPES: Mapping[str, tuple[type[Any] | tuple[type[Any], ...], str]] = {
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "text"),
}


def _check_types(config: object) -> None:
    """ConfigError for a value of another type than its field's: else a process meets it, at any time later."""
    for each in fields(config):  # type: ignore[arg-type]
        kind, called = _TYPES.get(str(each.type), (object, ""))
        value = getattr(config, each.name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"{type(config).__name__}.{each.name} must be {called}, not {value!r:.60}")


@dataclass(frozen=True)
class StorageConfig:
    """The settings of one replica's storage directory."""

    segment_size_bytes: int = 1_000_000_000
    """A segment is closed by the first record that takes it past this size (docs/formats.md, "Segment")."""

    index_flush_interval: int = 1000
    """Transactions between two flushes of the index: what a start has to scan again at the most."""

    preallocate_bytes: int = 4 * 1024 * 1024
    """How far a segment is zeroed ahead, 0 = not at all. fdatasync is about 1.5 times as fast where the file
    does not grow (docs/design.md, "Disk and CPU")."""

    journal_bytes: int = 8 * 1024 * 1024
    """Length of each of the two journal files, 0 = none. Records of many partitions become durable with one sync
    there (storage/journal.py); the longer they are, the less often segments are synced. Made when first needed."""

    journal_partitions: int = 2
    """The fewest partitions written in one turn for which the journal is used: one costs one sync in place, too."""

    page_cache_bytes: int = 256 * 1024 * 1024
    """How much of what was written last the replica leaves in the kernel's page cache, for all its partitions together,
    0 = all of it, for the kernel to judge. What is newer than that is in the servers' memory, too (retained_bytes); who
    catches up from further back reads long pieces from the disk. More for many readers that are far behind one after
    the other (docs/performance.md, "The page cache")."""

    repair: bool = True
    """Closed segments that have rotted are fetched from a peer while the partition goes on (storage/repair.py). False:
    the partition is taken out, cut before the damage and copied anew from there, as it is for damage above the
    mark."""

    scrub_bytes_per_s: int = 8 * 1024 * 1024
    """How fast closed segments are read again and checked (storage/scrub.py); repairs keep to it, too. 0 = never
    checked, and repairs take what they can. 8 MiB/s is a small part of any disk and, with records of 100 bytes, of
    one core's time (6 %); a terabyte takes a day and a half."""

    scrub_interval_s: int = 7 * 24 * 3600
    """From the beginning of one full pass to that of the next: rot is slow, and a second copy of the same record must
    not rot before the first is found."""

    tls_certificate: str = ""
    """Path of a PEM file, on every node; with it the replica takes TLS on its port, which its first byte tells from
    plain connections. Read again when it has changed."""

    tls_key: str = ""
    """Path of its key."""

    tls_authority: str = ""
    """Path of a PEM file with the authorities of replicas' certificates, on every node: with it servers, peers that
    repair and readers speak TLS with replicas, and nothing else."""

    tls_only: bool = False
    """Replicas let nobody in without TLS."""

    connections: int = 256
    """Connections of servers (and of readers) at one time; one more is closed at once. A server has two."""

    connections_per_peer: int = 128
    """Of these, connections from one address."""

    def __post_init__(self) -> None:
        _check_types(self)
        _require(self, "segment_size_bytes", 1, 1 << 40)
        _require(self, "index_flush_interval", 1, 1_000_000)
        _require(self, "preallocate_bytes", 0, 1 << 30)
        _require(self, "journal_bytes", 0, 1 << 34)
        _require(self, "journal_partitions", 1, 100_000)
        _require(self, "page_cache_bytes", 0, 1 << 50)
        _require(self, "scrub_bytes_per_s", 0, 1 << 40)
        _require(self, "scrub_interval_s", 0, 1 << 31)
        _require(self, "connections", 1, 100_000)
        _require(self, "connections_per_peer", 1, 100_000)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("StorageConfig.tls_certificate and tls_key go together: give both, or none")
        if self.tls_authority and not self.tls_certificate:
            raise ConfigError("StorageConfig.tls_authority is of the replicas' certificates: give tls_certificate, too")
        if self.tls_only and not self.tls_authority:
            raise ConfigError(
                "StorageConfig.tls_only needs tls_authority: without it nobody speaks TLS, so the replicas would let "
                "nobody in"
            )


@dataclass(frozen=True)
class ServerConfig:
    """The settings of one partition server."""

    lock_table_size: int = 30_000
    """Slots of a partition's lock table (the original's default); 8 bytes each. More slots, fewer false conflicts."""

    lock_table_probes: int = 3
    """Slots a lock ID is hashed to; its estimate is their minimum."""

    checkpoint_interval: int = 250_000
    """Transactions after which a new session raises the low-water marks (docs/design.md, "Sessions and recovery")."""

    retained_bytes: int = 256 * 1024 * 1024
    """Recent records kept in memory, for all partitions of the server together (each always has its equal share, and
    more while the others do not use theirs): feeds, fetches and late joiners near the tail never touch a disk, a
    replica this far behind is caught up from memory."""

    append_queue_bytes: int = 128 * 1024 * 1024
    """Records that may be in flight (not yet committed), for all partitions of the server together. When it is full,
    a partition that has more than its equal share answers QUEUE_FULL."""

    client_unsent_bytes: int = 128 * 1024 * 1024
    """A client that takes nothing while this much waits for it is cut off; its feed stops long before. Less than 1 MiB
    is taken for that, and one frame more may always wait: a record may be longer."""

    replica_lag_bytes: int = 64 * 1024 * 1024
    """A member this far behind what is committed has failed: it leaves the session and catches up later."""

    progress_bytes: int = 64 * 1024 * 1024
    """A replica that is brought up keeps what it has got across sessions in steps of this size: each is a write of its
    control file, and what came after the last is copied again."""

    copy_bytes_per_s: int = 128 * 1024 * 1024
    """How fast it copies from the disks of replicas to those that are behind or were added, for all of its partitions
    together; 0 = as fast as it goes. Below what appends bring at its most, a replica that was away long never comes
    back; 128 MiB/s is more than that, and leaves something of a disk and of a network of 10 Gbit/s."""

    join_grace_ms: int = 50
    """How long an opening session waits for the replicas beyond a quorum, so that a healthy one need not join late."""

    replica_timeout_ms: int = 10_000
    """A replica that does not answer a control request or acknowledge an append for this long has failed."""

    max_frame_bytes: int = 64 * 1024 * 1024
    """A longer frame of a client is a wire error: a bound on what one of them can make us allocate. Records that are in
    the log already are read and sent whatever their length."""

    retention_interval_ms: int = 2_000
    """How often it looks what may be trimmed in spaces that do not keep everything; 0 = never."""

    zookeeper_session_ms: int = 6_000
    """ZooKeeper session time-out: after this the partitions of a server that nobody hears of move. A killed one is
    noticed at once."""

    silent_ms: int = 1_500
    """A server that answers nothing on its port for so long hangs: those that answer get its partitions. 0 = it is left
    to its ZooKeeper session. On a machine where processes wait so long for a core it has to be more."""

    host: str = ""
    """Address to listen on and to announce; empty = the node's address as Ray knows it (loopback on a local Ray)."""

    port: int = 0
    """Port to listen on; 0 = any free one."""

    tls_certificate: str = ""
    """Path of a PEM file, on every node; with it the port takes TLS beside plain connections, and tells them apart by
    their first byte. Read again when it has changed."""

    tls_key: str = ""
    """Path of its key."""

    tls_clients: str = ""
    """Path of a PEM file with the authorities of clients: who comes with TLS has to have a certificate of one of them.
    Empty = it needs none."""

    tls_certificates_optional: bool = False
    """With tls_clients: who comes with TLS may have no certificate, and show a token instead."""

    tls_authority: str = ""
    """Path of a PEM file with the authorities of the servers' certificates, on every node: with it the cluster's own
    actors that are clients of servers (key/value, topics) speak TLS and prove that they are of the cluster, which they
    have to where clients have rights."""

    connections: int = 1024
    """Connections of clients at one time; one more is closed at once. A client has two to each server it uses."""

    connections_per_peer: int = 512
    """Of these, connections from one address."""

    hello_timeout_ms: int = 5_000
    """Who connects and says nothing for this long is closed."""

    client_stall_ms: int = 60_000
    """A client that takes less than 1 KiB a second of what was sent to it for this long is closed. So is one that has
    begun a frame and goes on with it by less than that, and one that comes by calls of the server's actor and has made
    none for this long."""

    def __post_init__(self) -> None:
        _check_types(self)
        _require(self, "lock_table_size", 1, 1 << 28)
        _require(self, "lock_table_probes", 1, 16)
        _require(self, "checkpoint_interval", 1, 1 << 40)
        _require(self, "retained_bytes", 0, 1 << 34)
        _require(self, "append_queue_bytes", 1, 1 << 34)
        _require(self, "client_unsent_bytes", 1, 1 << 34)
        _require(self, "replica_lag_bytes", 1, 1 << 34)
        _require(self, "progress_bytes", 1, 1 << 40)
        _require(self, "copy_bytes_per_s", 0, 1 << 40)
        _require(self, "join_grace_ms", 0, 60_000)
        _require(self, "replica_timeout_ms", 10, 600_000)
        _require(self, "max_frame_bytes", 1024, 64 * 1024 * 1024)  # what replicas take
        _require(self, "retention_interval_ms", 0, 86_400_000)
        _require(self, "zookeeper_session_ms", 500, 600_000)
        _require(self, "silent_ms", 0, 600_000)
        _require(self, "port", 0, 65_535)
        _require(self, "connections", 1, 1_000_000)
        _require(self, "connections_per_peer", 1, 1_000_000)
        _require(self, "hello_timeout_ms", 10, 600_000)
        _require(self, "client_stall_ms", 10, 3_600_000)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("ServerConfig.tls_certificate and tls_key go together: give both, or none")
        if self.tls_clients and not self.tls_certificate:
            raise ConfigError(
                "ServerConfig.tls_clients says whose clients to take with TLS, which needs tls_certificate"
            )
        if self.tls_certificates_optional and not self.tls_clients:
            raise ConfigError("ServerConfig.tls_certificates_optional is about tls_clients: give that, too")
        if self.tls_authority and not self.tls_certificate:
            raise ConfigError("ServerConfig.tls_authority is of the servers' certificates: give tls_certificate, too")

    def catch_up_bytes(self, partitions: int) -> int:
        """How much each of ``partitions`` may send or read at a time to bring a replica up.

        Within half a frame; and if all of them do so at once, the link they share stays within a quarter of its limit.
        """
        return max(1, min(self.max_frame_bytes // 2, self.replica_lag_bytes // (4 * partitions)))


@dataclass(frozen=True)
class ClientConfig:
    """One client in an application."""

    outstanding_appends: int = 10_000
    """Appends of one partition that may be without a fate; at the limit ``append`` blocks."""

    outstanding_bytes: int = 32 * 1024 * 1024
    """Bytes of data of one partition that may be without a fate; at the limit ``append`` blocks."""

    batch_bytes: int = 1024 * 1024
    """A batch is sent at the latest when it has this much data: client, server and replicas then work on different
    batches at one time, and a replica syncs several of them at once."""

    batch_records: int = 4096
    """A batch is sent at the latest when it has this many records."""

    linger_ms: float = 0.0
    """How long a batch may wait for company when the wire is free. 0: the batch in flight is the only linger."""

    feed_credit_bytes: int = 8 * 1024 * 1024
    """Feed frames a server may have on the way to this client per partition; a server keeps no more than 64 MiB.
    1: a frame at a time, so what is appended while the client is busy with one comes in one."""

    context_threads: int = 8
    """Threads that run transaction contexts."""

    mount_timeout_ms: int = 30_000
    """How long an append waits for a partition to become ready before it is answered PartitionNotReady."""

    request_timeout_ms: int = 30_000
    """How long a data fetch or another request may take before it fails."""

    share_connections: bool = True
    """Whether it shares connections with other clients of its event loop (all blocking ones of a process), if both are
    told of nothing but their own appends. Many that wait for each append get twice as many through."""

    quick_mounts_ms: int = 300
    """For so long a partition that is not ready is tried every 20 to 40 ms, then ever more rarely, down to one try a
    second. A planned move is over in 20 to 150 ms, and who sleeps through its end feels twice as much. 0: more rarely
    each time."""

    hindrance_after_ms: int = 2_000
    """An append or a mount that waits this long has its server asked why; the log of the process says it. 0: never."""

    silent_ms: int = 1_500
    """A server that says nothing on a connection for this long, though something is waited for there and it was asked,
    is given up, and connected to anew. Where nothing is waited for it is asked every ten times as long. 0: never; TCP
    notices a vanished machine after 11 s."""

    max_frame_bytes: int = 64 * 1024 * 1024
    """A longer frame is a wire error. A record takes half of it at the most, here and at the server."""

    tls_authority: str = ""
    """Path of a PEM file with the authorities of the servers' certificates. With this, a certificate or a token the
    client speaks TLS, and nothing else. If all four of these are empty, WALTZ_TLS_AUTHORITY, WALTZ_TLS_CERTIFICATE,
    WALTZ_TLS_KEY and WALTZ_TOKEN_FILE count; where a cluster says that it takes TLS only, TLS is spoken, and the
    authorities are the system's."""

    tls_certificate: str = ""
    """Path of a PEM file that says who the client is."""

    tls_key: str = ""
    """Path of its key."""

    token_file: str = ""
    """Path of a file, readable by its owner only, with the token that says who the client is."""

    def __post_init__(self) -> None:
        _check_types(self)
        _require(self, "outstanding_appends", 1, 10_000_000)
        _require(self, "outstanding_bytes", 1, 1 << 34)
        _require(self, "batch_bytes", 1, 1 << 30)
        _require(self, "batch_records", 1, 1_000_000)
        _require(self, "linger_ms", 0, 10_000)
        _require(self, "feed_credit_bytes", 1, 64 * 1024 * 1024)
        _require(self, "context_threads", 1, 1024)
        _require(self, "mount_timeout_ms", 1, 3_600_000)
        _require(self, "request_timeout_ms", 1, 3_600_000)
        _require(self, "quick_mounts_ms", 0, 3_600_000)
        _require(self, "hindrance_after_ms", 0, 3_600_000)
        _require(self, "silent_ms", 0, 600_000)
        _require(self, "max_frame_bytes", 1024, (1 << 31) - 1)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("ClientConfig.tls_certificate and tls_key go together: give both, or none")


@dataclass(frozen=True)
class KvConfig:
    """The key/value actors of a cluster: each serves its part of every space of kind kv, on one port per space."""

    actors: int = 0
    """How many there are, with IDs from 0; 0 = none. Two at the least have a copy of everything warm."""

    host: str = ""
    """Address to listen on and to announce; empty = the node's address as Ray knows it (loopback on a local Ray)."""

    port: int = 0
    """Port of actor 0 for the first kv space; 0 = any free one for all. Actor n has port + n; further spaces any free
    one."""

    dialect: str = "doc"
    """What is spoken with foreign clients: "doc", as the document says, or "2012", as servers of that year did."""

    session_ms: int = 1_500
    """ZooKeeper session time-out of an actor: after this, and up to a tick of ZooKeeper (100 ms of the embedded one), a
    hung one's buckets move. A killed one is noticed at once. The server may agree to more, never to less than two
    ticks, the embedded one to no less than a second; and to less, if this is more than its maxSessionTimeout (twenty
    ticks by default, 60 s of the embedded one): then that counts."""

    lease_margin_ms: int = 300
    """How much earlier than the session a lease to read ends: clocks that run at different speeds (a tenth of the
    lease would be extreme) and a session that was agreed to a little less."""

    fewest_buckets: int = 4
    """Buckets that an actor has at the least, primaries and secondaries counted; where a joining one would leave
    another with fewer, all are split (0xF to 0xFF, to 0xFFF)."""

    fullwait_ms: int = 2_000
    """How long a write with fullwait waits for its secondary before it is answered NOT_REPLICATED."""

    tls_certificate: str = ""
    """Path of a PEM file, on every node; with it the ports take TLS beside plain connections, and tell them apart by
    their first byte, which has to come within 5 s. Read again when it has changed."""

    tls_key: str = ""
    """Path of its key."""

    tls_clients: str = ""
    """Path of a PEM file with the authorities of clients: a certificate of one of them says who comes with TLS, another
    one is refused, and who has none may show a token. Empty = nobody is asked for one."""

    connections: int = 4096
    """Connections of clients to one port at one time; one more is closed at once."""

    connections_per_peer: int = 2048
    """Of these, connections from one address."""

    idle_ms: int = 0
    """Who says nothing for this long is closed; 0 = never: clients of the document keep quiet connections."""

    stall_ms: int = 60_000
    """A client that takes less than 1 KiB a second of what was sent to it for this long is closed."""

    unsent_bytes: int = 32 * 1024 * 1024
    """A client that takes nothing while this much waits for it is cut off."""

    max_frame_bytes: int = 32 * 1024 * 1024
    """A longer frame is a wire error: a bound on what one peer can make us allocate."""

    max_value_bytes: int = 8 * 1024 * 1024
    """A longer value is refused; the most there can be is 1 KiB less than 16 MiB."""

    outstanding: int = 4096
    """Commands of one connection that may be without an answer; at the limit nothing more is read from it."""

    compact_bytes: int = 4 * 1024 * 1024
    """Of a space, divided by its partitions: while so much is written to a partition, and half of its live state at
    least, that is written anew, section by section, and the log before it dropped."""

    def __post_init__(self) -> None:
        _check_types(self)
        _require(self, "actors", 0, 999)
        _require(self, "port", 0, 65_535)
        _require(self, "session_ms", 500, 600_000)
        _require(self, "lease_margin_ms", 0, 600_000)
        _require(self, "fewest_buckets", 1, 1024)
        _require(self, "fullwait_ms", 1, 600_000)
        _require(self, "connections", 1, 1_000_000)
        _require(self, "connections_per_peer", 1, 1_000_000)
        _require(self, "idle_ms", 0, 86_400_000)
        _require(self, "stall_ms", 10, 3_600_000)
        _require(self, "unsent_bytes", 1, 1 << 34)
        _require(self, "max_frame_bytes", 1024, 64 * 1024 * 1024)
        _require(self, "max_value_bytes", 1, (16 << 20) - 1024)
        _require(self, "outstanding", 1, 1_000_000)
        _require(self, "compact_bytes", 1024, 1 << 40)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("KvConfig.tls_certificate and tls_key go together: give both, or none")
        if self.tls_clients and not self.tls_certificate:
            raise ConfigError("KvConfig.tls_clients says whose clients to take with TLS, which needs tls_certificate")
        if self.dialect not in ("doc", "2012"):
            raise ConfigError(f'KvConfig.dialect must be "doc" or "2012", not {self.dialect!r}')
        if self.lease_margin_ms >= self.session_ms:
            raise ConfigError(
                f"KvConfig.lease_margin_ms ({self.lease_margin_ms}) must be less than session_ms ({self.session_ms}): "
                "else no lease is ever good"
            )


PORTS_OF_AN_ACTOR = 100
"""Of a topic actor, for its slots, from ``TopicConfig.broker_port`` on."""


@dataclass(frozen=True)
class TopicConfig:
    """The topic actors of a cluster: each has a port of the master and one for each slot that it serves."""

    actors: int = 0
    """How many there are, with IDs from 0; 0 = none. They need a key/value actor, which keeps where groups are."""

    host: str = ""
    """Address to listen on and to announce; empty = the node's address as Ray knows it (loopback on a local Ray)."""

    master_port: int = 0
    """Port of actor 0 for what clients say to a master; actor n has master_port + n. 0 = any free one. The protocol's
    usual one is 8715, with TLS 8716."""

    broker_port: int = 0
    """The first of a hundred ports of actor 0 for its slots; actor n begins 100 n higher. 0 = any free ones. The
    protocol's usual one is 8123, with TLS 8124."""

    tls_certificate: str = ""
    """Path of a PEM file, on every node; with it all ports speak TLS, and nothing else."""

    tls_key: str = ""
    """Path of its key."""

    session_ms: int = 1_500
    """ZooKeeper session time-out of an actor: after this a hung one's slots move. A killed one is noticed at once."""

    lease_margin_ms: int = 300
    """How much earlier than the session an actor's lease ends."""

    client_ms: int = 30_000
    """A producer or consumer that the master has not heard of for this long is gone; a consumer that a slot has not
    heard of for this long has its partition no more. Native consumers report to the slot every 0.5 s, and to the master
    every ``TopicClientConfig.heartbeat_s`` (1 s), which has to be shorter."""

    balance_ms: int = 1_000
    """So often the master looks whether partitions are shared out evenly."""

    hold_ms: int = 200
    """A pull for which there is nothing new is answered after this, or as soon as there is something."""

    max_message_bytes: int = 4 * 1024 * 1024
    """A longer message is refused. C++ clients take no reply above 8 MiB."""

    batch_bytes: int = 1024 * 1024
    """So much a pull brings at the most, but always one message."""

    batch_messages: int = 500
    """So many messages a pull brings at the most."""

    tail_bytes: int = 4 * 1024 * 1024
    """So much of the end of each partition is kept in memory, for who keeps up."""

    connections: int = 4096
    """Connections of clients to one port at one time; one more is closed at once."""

    connections_per_peer: int = 2048
    """Of these, connections from one address."""

    outstanding: int = 1024
    """Requests of one connection that may be without an answer; at the limit nothing more is read from it."""

    idle_ms: int = 300_000
    """Who says nothing for this long is closed; 0 = never. Clients close after three minutes by themselves."""

    stall_ms: int = 60_000
    """A client that takes less than 1 KiB a second of what was sent to it for this long is closed."""

    def __post_init__(self) -> None:
        _check_types(self)
        _require(self, "actors", 0, 999)
        _require(self, "master_port", 0, 65_535)
        _require(self, "broker_port", 0, 65_535)
        _require(self, "session_ms", 500, 600_000)
        _require(self, "lease_margin_ms", 0, 600_000)
        _require(self, "client_ms", 1_000, 3_600_000)
        _require(self, "balance_ms", 10, 600_000)
        _require(self, "hold_ms", 0, 10_000)
        _require(self, "max_message_bytes", 1, 20 * 1024 * 1024)
        _require(self, "batch_bytes", 1, 7 * 1024 * 1024)
        _require(self, "batch_messages", 1, 10_000)
        _require(self, "tail_bytes", 1, 1 << 34)
        _require(self, "connections", 1, 1_000_000)
        _require(self, "connections_per_peer", 1, 1_000_000)
        _require(self, "outstanding", 1, 1_000_000)
        _require(self, "idle_ms", 0, 86_400_000)
        _require(self, "stall_ms", 10, 3_600_000)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("TopicConfig.tls_certificate and tls_key go together: give both, or none")
        if self.lease_margin_ms >= self.session_ms:
            raise ConfigError(
                f"TopicConfig.lease_margin_ms ({self.lease_margin_ms}) must be less than session_ms "
                f"({self.session_ms}): else no lease is ever good"
            )


@dataclass(frozen=True)
class HttpConfig:
    """The manager's HTTP port: metrics, probes, and a page for people."""

    enabled: bool = True
    """Whether there is one."""

    host: str = "127.0.0.1"
    """Address to listen on. Nothing can be changed there. Who may see the cluster's state is a right of clients; while
    there are none, who reaches it does."""

    port: int = 0
    """Port to listen on; 0 = any free one, another one after each start of the manager: `waltz status` tells it. A
    Prometheus needs one that stays."""

    interval_ms: int = 2_000
    """How often the cluster is looked at: every actor is asked once, however many read what was seen."""

    connections: int = 64
    """Connections at one time; one more is closed at once."""

    tls_certificate: str = ""
    """Path of a PEM file where the manager runs; with it the port takes TLS beside plain connections. Read again when
    it has changed."""

    tls_key: str = ""
    """Path of its key."""

    tls_clients: str = ""
    """Path of a PEM file with the authorities of clients: a certificate of one of them says who comes with TLS, another
    one is refused, and who has none may show a token. Empty = nobody is asked for one."""

    @property
    def scheme(self) -> str:
        """How the page's address begins."""
        return "https" if self.tls_certificate else "http"

    def __post_init__(self) -> None:
        _check_types(self)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("HttpConfig.tls_certificate and tls_key go together: give both, or none")
        if self.tls_clients and not self.tls_certificate:
            raise ConfigError("HttpConfig.tls_clients says whose clients to take with TLS, which needs tls_certificate")
        _require(self, "port", 0, 65_535)
        _require(self, "interval_ms", 100, 60_000)
        _require(self, "connections", 1, 100_000)


@dataclass(frozen=True)
class DiskConfig:
    """Where one replica's disk is; decided for the life of the cluster."""

    directory: str = ""
    """Absolute path on the replica's node: replica n stores in ``<directory>/replica-<n>``. Empty = the cluster's
    directory."""

    resource: str = ""
    """The Ray resource that the node with the disk offers, and no other. Empty = ``waltz-replica-<n>``, or where nobody
    offers that, the only node there is."""

    def __post_init__(self) -> None:
        _check_types(self)
        if self.directory and not self.directory.startswith("/"):
            raise ConfigError(f"DiskConfig.directory must be an absolute path, not {self.directory!r}")


SECTIONS: Mapping[str, type[Any]] = {
    "server": ServerConfig,
    "storage": StorageConfig,
    "kv": KvConfig,
    "topics": TopicConfig,
    "http": HttpConfig,
}
"""Of a cluster's configuration: the fields that are settings of a kind of process, and their classes."""


_LEAST_BY_NOW = {("topics", "client_ms"): 1_000}
"""Bounds that are narrower than they were when a cluster may have been made."""


def within_bounds(section: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a section that were kept by this version or an earlier one, which took some that are refused now:
    a cluster that has such a one has to start all the same, and to be given another."""
    return {
        name: max(least, value) if (least := _LEAST_BY_NOW.get((section, name))) and type(value) is int else value
        for name, value in kept.items()
    }


@dataclass(frozen=True)
class ClusterConfig:
    """What ``waltz up`` brings up."""

    name: str = "waltz"
    """Name of the cluster: actors live in the Ray namespace ``waltz-<name>``, ZooKeeper nodes under ``/<name>``."""

    directory: str = ""
    """Absolute path on every storage node; replica n stores in ``<directory>/replica-<n>``."""

    partitions: int = 4
    """Number of partitions; fixed for the life of the cluster."""

    replicas: int = 3
    """Storage replicas."""

    servers: int = 2
    """Partition servers."""

    zookeeper: str = ""
    """``host:port,...`` of an ensemble; empty = the embedded ZooKeeper in ``<directory>/zookeeper``."""

    storage: StorageConfig = field(default_factory=StorageConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    kv: KvConfig = field(default_factory=KvConfig)
    topics: TopicConfig = field(default_factory=TopicConfig)
    http: HttpConfig = field(default_factory=HttpConfig)

    replication: int = 0
    """How many of the replicas hold each partition: 3 or 5, or 0 = all of them; fixed for the life of the cluster. More
    replicas than that are more disks and more room; what a partition commits depends on its own replicas only."""

    disks: tuple[DiskConfig, ...] = ()
    """One for each replica, in their order, or none: then all are where ``DiskConfig`` puts them by default."""

    secret_file: str = ""
    """Absolute path of the file with the cluster's secret, the same on every node on which an actor of the cluster
    runs; empty = ``<directory>/cluster.secret``. It is made by the first ``waltz up``, and copied by the operator."""

    rights_file: str = ""
    """Absolute path, where ``waltz up`` runs, of a file with the rights of clients: set before the first server starts,
    or whenever ``waltz up`` finds that there are none. What there is stays: ``waltz access set`` changes it."""

    insecure: bool = False
    """Whether ports that speak plain, or ask nobody who he is, may listen on other addresses than loopback: for
    networks that only the cluster and its applications reach. It is looked at by each ``waltz up``."""

    @property
    def secret_path(self) -> str:
        """Where the cluster's secret is, on every node."""
        return self.secret_file or f"{self.directory}/cluster.secret"

    def __post_init__(self) -> None:
        _check_types(self)
        for name, kind in SECTIONS.items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"ClusterConfig.{name} must be a {kind.__name__}, not {getattr(self, name)!r:.60}")
        if not isinstance(self.disks, tuple) or not all(isinstance(disk, DiskConfig) for disk in self.disks):
            raise ConfigError(f"ClusterConfig.disks must be a tuple of DiskConfig, not {self.disks!r:.60}")
        _require(self, "partitions", 1, 100_000)
        _require(self, "replicas", 1, 99)
        _require(self, "servers", 1, 9999)
        if self.replication not in (0, 3, 5) or self.replication > self.replicas:
            raise ConfigError(
                f"ClusterConfig.replication must be 3, 5 or 0 (all), and not more than there are replicas "
                f"({self.replicas}), not {self.replication!r}"
            )
        if self.disks and len(self.disks) != self.replicas:
            raise ConfigError(
                f"ClusterConfig.disks must be one for each of the {self.replicas} replicas, or none at all, not "
                f"{len(self.disks)}"
            )
        if self.secret_file and not self.secret_file.startswith("/"):
            raise ConfigError(f"ClusterConfig.secret_file must be an absolute path, not {self.secret_file!r}")
        if self.rights_file and not self.rights_file.startswith("/"):
            raise ConfigError(f"ClusterConfig.rights_file must be an absolute path, not {self.rights_file!r}")
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name):
            raise ConfigError(
                f"ClusterConfig.name must consist of letters, digits, '-', '_' and '.', not {self.name!r}"
            )
        if self.name in (".", "..", "zookeeper"):
            raise ConfigError(f"ClusterConfig.name cannot be {self.name!r}: ZooKeeper has that for itself")
