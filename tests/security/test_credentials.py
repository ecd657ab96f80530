"""What clients show servers: files whose paths travel, and what actors of the cluster prove."""

from __future__ import annotations

import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.security.keys import SECRET
from waltz_ray.actors.member_credentials import MemberCredentials
from waltz_ray.client.credentials import NO_CREDENTIALS, TLS_VARIABLES, Credentials
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ClientConfig, ClusterConfig, KvConfig, ServerConfig, TopicConfig
from waltz_ray.errors import ConfigError
from waltz_ray.security.certificates import make_certificates
from waltz_ray.security.member_token import is_member_token
from waltz_ray.startup_checks import check_layers_come_in


@pytest.fixture
def files(tmp_path: Path) -> Path:
    make_certificates(tmp_path, ["127.0.0.1"], ["ann"], 2)
    (tmp_path / "ann.token").write_text("a token\n")
    (tmp_path / "ann.token").chmod(0o600)
    return tmp_path


def of_ann(files: Path) -> Credentials:
    return Credentials(f"{files}/authority.pem", f"{files}/ann.pem", f"{files}/ann.key", f"{files}/ann.token")


def test_the_configuration_counts_and_else_the_environment(files: Path) -> None:
    environment = dict(zip(TLS_VARIABLES.values(), ("/a", "/c", "/k", "/t"), strict=True))
    assert Credentials.of(None, environment) == Credentials("/a", "/c", "/k", "/t")
    assert Credentials.of(ClientConfig(tls_authority="/b"), environment) == Credentials("/b")
    assert Credentials.of(ClientConfig(), {}) == NO_CREDENTIALS
    with pytest.raises(ConfigError, match="certificate and its key go together"):
        Credentials.of(None, {"WALTZ_TLS_KEY": "/k"})


def test_without_any_it_is_plain_unless_the_cluster_takes_nothing_else() -> None:
    assert NO_CREDENTIALS.context() is None
    assert NO_CREDENTIALS.where_tls_is_asked_for(False).context() is None
    context = NO_CREDENTIALS.where_tls_is_asked_for(True).context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_paths_travel_and_nothing_that_is_in_the_files(files: Path) -> None:
    travelled = pickle.dumps(of_ann(files))
    assert pickle.loads(travelled) == of_ann(files)
    assert b"a token" not in travelled
    assert pickle.loads(travelled).token() == "a token"


def test_files_are_read_again_when_they_have_changed(files: Path) -> None:
    ann = of_ann(files)
    first = ann.context()
    assert ann.context() is first
    (files / "authority.pem").unlink()
    with pytest.raises(ConfigError, match=r"files for TLS cannot be used .*authority\.pem"):
        ann.context()
    make_certificates(files / "new", ["127.0.0.1"], [], 2)
    (files / "new" / "authority.pem").rename(files / "authority.pem")
    assert ann.context() is not first


@pytest.mark.parametrize(("text", "error"), [("", "holds no token"), ("x" * 5000, "holds no token"), (None, "be read")])
def test_a_token_file_that_is_none_is_refused(files: Path, text: str | None, error: str) -> None:
    path = files / "ann.token"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(ConfigError, match=error):
        of_ann(files).token()


def test_a_token_that_others_can_read_is_refused(files: Path) -> None:
    (files / "ann.token").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        of_ann(files).token()


def test_an_actor_of_the_cluster_proves_it_over_tls_only(files: Path) -> None:
    authority = files / "authority.pem"
    member = MemberCredentials(str(authority), lambda: SECRET)
    assert member.context() is member.context() is not None
    assert is_member_token(SECRET, member.token())
    plain = MemberCredentials("", lambda: SECRET)
    assert plain.context() is None
    assert plain.token() == ""
    authority.write_text("nothing")
    with pytest.raises(ConfigError, match="tls_authority"):
        member.context()


@pytest.mark.parametrize("field", ["tls_authority", "tls_certificates_optional"])
def test_settings_that_need_others_say_so(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        ServerConfig(**{field: "/a" if field == "tls_authority" else True})  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", [{"kv": KvConfig(actors=1)}, {"topics": TopicConfig(actors=1)}, {}])
@pytest.mark.parametrize("optional", [True, False])
def test_a_cluster_whose_servers_would_refuse_its_own_actors_is_not_started(
    layer: dict[str, Any], optional: bool
) -> None:
    server = ServerConfig(
        tls_certificate="/c", tls_key="/k", tls_clients="/a", tls_certificates_optional=optional, tls_authority="/a"
    )
    config = ClusterConfig("c", "/x", server=server, **layer)
    if layer and not optional:
        with pytest.raises(ConfigError, match="for lack of a certificate: with tls_clients give"):
            check_layers_come_in(config)
    else:
        check_layers_come_in(config)


def test_clients_with_other_files_share_no_connection(files: Path) -> None:
    ann = TcpTransport(credentials=of_ann(files))
    assert ann.shared == TcpTransport(credentials=of_ann(files)).shared
    assert ann.shared != TcpTransport().shared
    assert ann.shared != TcpTransport(credentials=Credentials(str(files / "authority.pem"))).shared
