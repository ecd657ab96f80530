"""By what a client knows servers, and by what they know it: files for TLS, and one with a token.

Paths only, so they may travel: to tasks, in pickles, in contexts. What is in the files is read where a connection is
made, again when one of them has changed.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from waltz_ray.client.forks import in_forked_child
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ConfigError
from waltz_ray.net.tls import Stamps, client_context, stamps_of
from waltz_ray.small_files import others_read

__all__ = ["NO_CREDENTIALS", "TLS_VARIABLES", "Credentials", "Presented"]

TLS_VARIABLES: Mapping[str, str] = {
    "tls_authority": "WALTZ_TLS_AUTHORITY",
    "tls_certificate": "WALTZ_TLS_CERTIFICATE",
    "tls_key": "WALTZ_TLS_KEY",
    "token_file": "WALTZ_TOKEN_FILE",
}
"""Fields of ``ClientConfig`` -> what says them where they are empty."""

_TOKEN_BYTES = 4096


class Presented(Protocol):
    """What a connection to a server needs to know of this side."""

    def context(self) -> ssl.SSLContext | None:
        """None: it is plain. ConfigError if a file cannot be used."""

    def token(self) -> str:
        """ "" = none. ConfigError if it cannot be read."""


@dataclass(frozen=True)
class Credentials:
    """``authority``: PEM file of whom the servers' certificates are from, "" = the system's choice. ``certificate``,
    ``key``: who this client is. ``token_file``: the same, in one line. ``tls``: also where nothing of these is said."""

    authority: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""
    tls: bool = False

    @classmethod
    def of(cls, config: ClientConfig | None = None, environment: Mapping[str, str] = os.environ) -> Credentials:
        """What ``config`` says; what it leaves open, the environment."""
        said = {name: getattr(config, name, "") or "" for name in TLS_VARIABLES}
        if not any(said.values()):
            said = {name: environment.get(variable, "") for name, variable in TLS_VARIABLES.items()}
        if bool(said["tls_certificate"]) != bool(said["tls_key"]):
            raise ConfigError("a client's certificate and its key go together: give both, or none")
        return cls(said["tls_authority"], said["tls_certificate"], said["tls_key"], said["token_file"])

    def where_tls_is_asked_for(self, tls_only: bool) -> Credentials:
        """Of a cluster that says whether it takes TLS only."""
        return replace(self, tls=True) if tls_only else self

    @property
    def speaks_tls(self) -> bool:
        return self != Credentials()

    def context(self) -> ssl.SSLContext | None:
        """As ``Presented`` has it."""
        if not self.speaks_tls:
            return None
        with _lock:
            files = [path for path in (self.authority, self.certificate, self.key) if path]
            try:
                seen = stamps_of(files)
                before = _contexts.get(self)
                if before is None or before[0] != seen:
                    made = client_context(self.authority or None, self.certificate or None, self.key or None)
                    _contexts[self] = before = seen, made
                return before[1]
            except OSError as error:  # which ssl.SSLError is
                raise ConfigError(
                    f"this client's files for TLS cannot be used ({', '.join(files)}): {error.strerror or error}; they "
                    "have to be PEM files, at these paths on every machine that connects"
                ) from error

    def token(self) -> str:
        """As ``Presented`` has it."""
        if not self.token_file:
            return ""
        try:
            with open(self.token_file, "rb") as file:
                about, content = os.fstat(file.fileno()), file.read(_TOKEN_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"the token in {self.token_file} cannot be read: {error.strerror}") from error
        if others_read(about):
            raise ConfigError(
                f"the token in {self.token_file} can be read by others than its owner; ask for another one if they may "
                f"have, and: chmod 600 {self.token_file}"
            )
        token = content.decode("utf-8", "replace").strip()
        if not token or len(content) > _TOKEN_BYTES:
            raise ConfigError(f"{self.token_file} holds no token: one line, as waltz access token prints it")
        return token


NO_CREDENTIALS = Credentials()
_contexts: dict[Credentials, tuple[Stamps, ssl.SSLContext]] = {}
_lock = threading.Lock()  # of these


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


in_forked_child(_renew_lock)
