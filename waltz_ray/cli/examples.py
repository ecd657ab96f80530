"""The examples in each command's help, by its words. A test has each of them parsed."""

from __future__ import annotations

__all__ = ["EXAMPLES"]

_CLUSTER = {
    "up": ("waltz up --dir ./cluster", "waltz up --dir ./cluster --replicas 5 --replication 3 --kv 2"),
    "down": ("waltz down --dir ./cluster",),
    "apply": ("waltz apply --config deploy/cluster.yaml --dry-run", "waltz apply --config deploy/cluster.yaml"),
    "status": ("waltz status", "waltz status --watch", "waltz status --output yaml"),
    "doctor": ("waltz doctor", "waltz doctor --json"),
    "top": ("waltz top", "waltz top --count 2 --interval 1"),
    "log": (
        "waltz log --since 10m",
        "waltz log --actor replica/0 --level warning",
        "waltz log -p 3 --follow",
    ),
    "upgrade": ("waltz upgrade --rolling --dry-run", "waltz upgrade --rolling"),
    "demo": ("waltz demo --flights 20000",),
    "access show": ("waltz access show",),
    "access set": ("waltz access set rights.json",),
    "access token": ("waltz access token billing ./billing.token",),
    "access remove": ("waltz access remove --yes",),
    "certs make": ("waltz certs make ./certs --host log.example --client billing",),
    "context create": (
        "waltz context create prod --zookeeper zk1:2181,zk2:2181 --cluster orders",
        "waltz context create lab --dir ./cluster",
    ),
    "context use": ("waltz context use prod", "waltz context use -"),
    "context list": ("waltz context list",),
    "context show": ("waltz context show", "waltz context show prod --json"),
    "context delete": ("waltz context delete lab",),
}

_RECORDS = {
    "load": ("waltz load flights.csv --key tailnum", "waltz load flights.csv --key tailnum --resume"),
    "produce": ("tail -f app.log | waltz produce -p 0 --skip-bad", "waltz produce --jsonl < records.jsonl"),
    "feed": (
        "waltz feed -p 0 --limit 3",
        "waltz feed -p 0,1 --since 10m --times",
        "waltz feed --follow --json",
        "waltz feed -p 0 --format null | waltz produce -0 -p 1",
    ),
    "trim": ("waltz trim -p 0 --before 7d --dry-run", "waltz trim -p 0 --before 1000 --yes"),
    "holds list": ("waltz holds list",),
    "holds release": ("waltz holds release backup.nightly --yes",),
    "cursor list": ("waltz cursor list",),
    "cursor show": ("waltz cursor show mail",),
    "cursor reset": ("waltz cursor reset mail --to 10m --dry-run", "waltz cursor reset mail --to earliest --yes"),
    "cursor delete": ("waltz cursor delete mail --yes",),
    "space create": (
        "waltz space create orders --partitions 8",
        "waltz space create audit --partitions 2 --set retention_ms=604800000",
    ),
    "space list": ("waltz space list", "waltz space list --output json"),
    "space describe": ("waltz space describe orders",),
    "space set": ("waltz space set orders retention_bytes=1000000000", "waltz space set orders retention_bytes=none"),
    "space delete": ("waltz space delete orders --dry-run", "waltz space delete orders --yes"),
}

_MEMBERS = {
    "move": ("waltz move -p 3 --to server/1", "waltz move -p 3 -p 4 --replicas 1,4,5 --no-wait"),
    "rebalance": ("waltz rebalance --dry-run", "waltz rebalance"),
    "replace-replica": ("waltz replace-replica 2", "waltz replace-replica 2 --partition 7 --yes"),
    "replica list": ("waltz replica list",),
    "replica add": ("waltz replica add",),
    "replica drain": ("waltz replica drain 0 --dry-run", "waltz replica drain 0", "waltz replica drain 0 --cancel"),
    "replica remove": ("waltz replica remove 0",),
    "replica replace": ("waltz replica replace 2 --set-files-aside --yes",),
    "server list": ("waltz server list",),
    "server add": ("waltz server add",),
    "server drain": ("waltz server drain 0", "waltz server drain 0 --cancel"),
    "server remove": ("waltz server remove 0",),
}

_LAYERS = {
    "kv get": ("waltz kv get greeting", "waltz kv get greeting --json"),
    "kv set": ("waltz kv set greeting hello --expires 60", "waltz kv set hits 1 --int --expected absent"),
    "kv delete": ("waltz kv delete greeting",),
    "kv scan": ("waltz kv scan user/ --limit 10", "waltz kv scan --count"),
    "kv watch": ("waltz kv watch user/ --json",),
    "kv lock": ("waltz kv lock --lease 10 nightly -- ./report.sh",),
    "kv status": ("waltz kv status",),
    "topic produce": ("waltz topic produce visits hello", "waltz topic produce visits < lines.txt"),
    "topic consume": ("waltz topic consume visits --group g --limit 10",),
    "topic describe": ("waltz topic describe visits",),
    "topic groups": ("waltz topic groups",),
    "topic lag": ("waltz topic lag g --topic visits",),
    "topic reset": ("waltz topic reset g visits --to 10m --dry-run", "waltz topic reset g visits --to earliest --yes"),
    "topic access": ("waltz topic access", "waltz topic access access.json"),
    "topic flow": ("waltz topic flow", "waltz topic flow flow.json"),
    "streams run": ("waltz streams run --config streams.toml", "waltz streams run --once"),
    "streams status": ("waltz streams status --watch",),
    "streams recover": ("waltz streams recover --config streams.toml",),
    "streams quarantine list": ("waltz streams quarantine list",),
    "streams quarantine retry": ("waltz streams quarantine retry --service merge RECORD",),
    "streams quarantine drop": ("waltz streams quarantine drop --service merge RECORD --yes",),
    "pipeline": ("waltz pipeline --records 100000",),
}

_OFFLINE = {
    "inspect": ("waltz inspect ./cluster/replica-0",),
    "verify": ("waltz verify ./cluster", "waltz verify ./cluster --running --json"),
    "fence show": ("waltz fence show ./cluster/replica-0 --partition 1",),
    "fence reset": ("waltz fence reset ./cluster/replica-0 --partition 1 --session 7",),
    "backup run": ("waltz backup ./backups", "waltz backup run s3://bucket/waltz --rate 50MB --hold"),
    "backup verify": ("waltz backup verify ./backups",),
    "backup holds": ("waltz backup holds", "waltz backup holds --release backup.restored --yes"),
    "restore": (
        "waltz restore ./backups --into ./again",
        "waltz restore ./backups --into ./again --until 2026-11-21T12:00Z",
    ),
    "recover": (
        "waltz recover --from-replicas ./cluster",
        "waltz recover --from-replicas ./cluster --apply --yes",
    ),
    "import": ("waltz import ./waltz-0.13/storage --space old --create",),
    "export-original": ("waltz export-original ./cluster/replica-0 --into ./storage",),
}

_BENCH = {
    "bench append": ("waltz bench append --clients 1,64",),
    "bench kv": ("waltz bench kv --runs 3",),
    "bench topics": ("waltz bench topics --runs 3",),
    "bench latency": ("waltz bench latency --seconds 5",),
    "bench context": ("waltz bench context --threads 4",),
    "bench feed": ("waltz bench feed --subscribers 4",),
    "bench fetch": ("waltz bench fetch --records 100000",),
    "bench actor": ("waltz bench actor",),
    "bench recover": ("waltz bench recover --records 100000",),
    "bench spark": ("waltz bench spark --executors 2",),
    "bench copies": ("waltz bench copies --files 3",),
    "bench growth": ("waltz bench growth --millions 1",),
    "bench partitions": ("waltz bench partitions --partitions 1000",),
    "bench smoke": ("waltz bench smoke --transactions 100000",),
    "bench kills": ("waltz bench kills --minutes 2",),
    "bench availability": ("waltz bench availability --tries 20",),
    "bench retention": ("waltz bench retention --minutes 3",),
    "bench all": ("waltz bench all --results benchmarks/results",),
    "bench compare nats": ("waltz bench compare nats --runs 3",),
    "bench compare postgres": ("waltz bench compare postgres --runs 3",),
}

EXAMPLES: dict[str, tuple[str, ...]] = {**_CLUSTER, **_RECORDS, **_MEMBERS, **_LAYERS, **_OFFLINE, **_BENCH}
"""The command's words -> what a shell is given: at least one line each, at most 76 columns."""
