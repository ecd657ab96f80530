"""Every path of the manager's HTTP port, as everybody: what docs/security.md says of each is what happens."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.test_status import CLUSTER
from tests.security.http_rights import (
    HTTP_NAMES,
    HTTP_RULES,
    HTTP_TOKEN,
    GuardedPort,
    Told,
    basic,
    bearer,
    certified_port,
    context_of,
    fetch,
)
from tests.security.keys import until
from tests.security.test_who_may_what import table_of
from waltz_ray.actors.http_access import is_probe
from waltz_ray.actors.http_pages import PATHS
from waltz_ray.protocol.access import ANY, SpaceRight, SpaceRules
from waltz_ray.security.certificates import make_certificates
from waltz_ray.wire.access_document import encode_access_rules

COLUMNS = ("nobody", "wrong certificate", *HTTP_NAMES)
TABLE = table_of("http", COLUMNS)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedPort]:
    with certified_port(tmp_path_factory.mktemp("http")) as made:
        yield made


@pytest.fixture(scope="module")
def comers(port: GuardedPort) -> dict[str, ssl.SSLContext]:
    found: dict[str, ssl.SSLContext] = {name: context_of(port.directory, name) for name in HTTP_NAMES}
    found["nobody"] = context_of(port.directory)
    found["wrong certificate"] = context_of(port.directory, "monitor", "strange")
    return found


def refusals(port: GuardedPort) -> int:
    return sum(port.guard.refused.values())


def test_the_table_has_every_path_and_no_other() -> None:
    assert set(TABLE) == set(PATHS)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_the_table_says_is_what_happens(
    port: GuardedPort, comers: dict[str, ssl.SSLContext], path: str, column: str, method: str
) -> None:
    before = refusals(port)
    told = fetch(port, path, comers[column], method=method)
    sees = column in ("admin", "monitor")
    if path == "/nothing":
        allowed = sees and told.status == 404
    else:
        allowed = told.status in (200, 404, 503)  # there is no server 0
        assert TABLE[path][COLUMNS.index(column)] == ("yes" if allowed else "no")
    if column == "wrong certificate":
        assert told == Told()
    elif not allowed:
        assert told.status == (401 if column == "nobody" else 403)
        assert ("WWW-Authenticate: Basic realm=" in told.head) == (column == "nobody")
    if is_probe(path) and not sees and column != "wrong certificate":
        assert told.body == ("" if method == "HEAD" else "yes\n" if told.status == 200 else "no\n")
    assert (refusals(port) > before) == (not allowed and column != "wrong certificate")


def test_probes_say_no_more_than_yes_and_no_to_strangers(port: GuardedPort) -> None:
    """Not why, nor which actors there are; who may see the cluster is told."""
    stranger, seeing = context_of(port.directory), context_of(port.directory, "monitor")
    for context in (None, stranger):
        assert fetch(port, "/healthz", context).body == "yes\n"
        assert (fetch(port, "/readyz", context).status, fetch(port, "/readyz", context).body) == (503, "no\n")
        for name in ("replica/0", "replica/99", "nothing"):
            told = fetch(port, f"/readyz/{name}", context)
            assert (told.status, told.body) == (503, "no\n")
    assert "no storage" in fetch(port, "/readyz", seeing).body
    assert fetch(port, "/readyz/replica/99", seeing).body == "the cluster has no actor replica/99\n"
    try:
        port.seen = CLUSTER
        port.watch.beat()
        assert (fetch(port, "/readyz/replica/0").status, fetch(port, "/readyz/replica/0").body) == (200, "yes\n")
    finally:
        port.seen = replace(CLUSTER, replicas={})
        port.watch.beat()


@pytest.mark.parametrize(
    "shows", [bearer(HTTP_TOKEN), basic(HTTP_TOKEN), basic(HTTP_TOKEN, "anybody"), f"bEARER  {HTTP_TOKEN}"]
)
def test_a_token_shows_who_comes(port: GuardedPort, shows: str) -> None:
    told = fetch(port, "/status.json", context_of(port.directory), shows)
    assert (told.status, '"problems"' in told.body) == (200, True)
    with_another_name = fetch(port, "/status.json", context_of(port.directory, "reader"), shows)
    assert with_another_name.status == 200, "it counts in place of the certificate"


@pytest.mark.parametrize(
    "shows", [bearer("nobody's"), basic("nobody's"), "Basic !!!", "Basic YQ==", "Digest x", "Bearer", "Basic /w=="]
)
def test_a_token_that_is_nobodys_is_asked_for_again(port: GuardedPort, shows: str) -> None:
    for name in ("", "monitor"):
        before = port.guard.refused["wrong_token"]
        told = fetch(port, "/metrics", context_of(port.directory, name), shows)
        assert (told.status, told.body) == (401, "the token is nobody's here: ask the operator for another one\n")
        assert port.guard.refused["wrong_token"] == before + 1


def test_the_right_is_of_the_whole_cluster(port: GuardedPort) -> None:
    told = fetch(port, "/metrics", context_of(port.directory), basic("of one space"))
    assert (told.status, told.body) == (
        403,
        "client 'one_space' may not admin or monitor in all spaces: ask the operator for the right\n",
    )


def test_over_a_plain_connection_a_token_is_refused_and_tls_is_named(port: GuardedPort) -> None:
    told = fetch(port, "/metrics", None, bearer(HTTP_TOKEN))
    assert told.status == 403
    assert told.body.startswith("a token is taken over TLS only")
    told = fetch(port, "/")
    assert (told.status, "use https://" in told.body, "WWW-Authenticate" in told.head) == (403, True, False)
    assert port.guard.refused["plain_token"] == 1


def test_who_asks_to_change_something_is_refused_whoever_it_is(port: GuardedPort) -> None:
    for name in ("", "admin"):
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            assert fetch(port, "/", context_of(port.directory, name), method=method).status == 405


def test_a_change_of_the_rights_holds_at_once(tmp_path: Path) -> None:
    with certified_port(tmp_path, None) as port:
        stranger, monitor = context_of(tmp_path), context_of(tmp_path, "monitor")
        assert fetch(port, "/metrics").status == fetch(port, "/metrics", stranger, bearer("any")).status == 200
        port.guard.take_rules(encode_access_rules(HTTP_RULES))
        assert (fetch(port, "/metrics", stranger).status, fetch(port, "/metrics", monitor).status) == (401, 200)
        open_to_all = SpaceRules(rights={(ANY, ANY): frozenset({SpaceRight.MONITOR})})
        port.guard.take_rules(encode_access_rules(open_to_all))
        assert fetch(port, "/metrics").status == fetch(port, "/metrics", stranger).status == 200
        assert fetch(port, "/metrics", monitor).status == 401, "a client of that name is not known any more"
        port.guard.take_rules(encode_access_rules(replace(open_to_all, tls_only=True)))
        assert (fetch(port, "/metrics").status, fetch(port, "/metrics", stranger).status) == (403, 200)
        assert fetch(port, "/healthz").status == 200
        port.guard.take_rules(b"no JSON")
        assert (fetch(port, "/metrics").status, fetch(port, "/metrics", stranger).status) == (403, 200)
        port.guard.take_rules(None)
        assert fetch(port, "/metrics").status == 200


def test_certificates_are_read_again_and_clients_may_be_asked_for_none(tmp_path: Path) -> None:
    with certified_port(tmp_path, clients=False) as port:
        assert fetch(port, "/metrics", context_of(tmp_path, "monitor")).status == 401, "nobody looks at certificates"
        old = context_of(tmp_path)
        for name in ("authority", "server"):
            for end in ("pem", "key"):
                (tmp_path / f"{name}.{end}").unlink()
        make_certificates(tmp_path, ["127.0.0.1"], [], 3)
        assert fetch(port, "/healthz", old) == Told()
        assert fetch(port, "/metrics", context_of(tmp_path), bearer(HTTP_TOKEN)).status == 200


def test_a_port_without_tls_says_that_nobody_can_show_who_he_is(tmp_path: Path) -> None:
    with certified_port(tmp_path, tls=False) as port:
        told = fetch(port, "/")
        why = "has no TLS (HttpConfig.tls_certificate), so nobody can show who he is here\n"
        assert (told.status, told.body.endswith(why)) == (403, True)
        assert fetch(port, "/healthz").body == "yes\n"


def test_handshakes_that_fail_leave_nothing(port: GuardedPort, comers: dict[str, ssl.SSLContext]) -> None:
    """The connection was made for them, and is never told that it is lost."""
    for _ in range(20):
        assert fetch(port, "/", comers["wrong certificate"]) == Told()
    assert fetch(port, "/", comers["monitor"]).status == 200
    until(lambda: not port.port.connections)
    assert port.port.open == 0
