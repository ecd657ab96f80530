"""What a key/value client can be told."""

from __future__ import annotations

from dataclasses import dataclass

from waltz_ray.client.credentials import TLS_VARIABLES, Credentials
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ConfigError, InvalidInput

__all__ = ["MOST_TIMEOUT_S", "KvClientConfig", "checked_timeout_s"]

MOST_TIMEOUT_S = 300.0
"""Half of the time for which a write is recognised when it comes again: no call goes on for longer."""


@dataclass(frozen=True)
class KvClientConfig:
    """ConfigError if a value is out of range."""

    timeout_s: float = 30.0
    """For each call, unless it is given another: retries, moves of buckets and waiting for room included."""
    outstanding_bytes: int = 64 * 1024 * 1024
    """Of names and values that have been asked or written and have no answer; further calls wait for room."""
    max_frame_bytes: int = 32 * 1024 * 1024
    """The longest answer that is taken; the actors' limit is the same, unless it was set."""

    tls: bool = False
    """Speak TLS, to ports that have a certificate (``KvConfig.tls_certificate``), and nothing else. If it is off, the
    environment counts, as with ``ClientConfig``; where a cluster says that it takes TLS only, TLS is spoken."""
    tls_authority: str = ""
    """PEM file of whom the ports' certificates are from; empty: the system's choice."""

    tls_certificate: str = ""
    """PEM file that says who the client is."""
    tls_key: str = ""
    """Its key."""
    token_file: str = ""
    """A file, readable by its owner only, with the token that says who the client is."""

    def credentials(self) -> Credentials:
        """What connections to actors are made with. ConfigError."""
        if not self.tls:
            return Credentials.of()
        return Credentials(self.tls_authority, self.tls_certificate, self.tls_key, self.token_file, tls=True)

    def of_the_log(self) -> ClientConfig | None:
        """For a client of the space's log; None: as any other."""
        said = {name: getattr(self, name) for name in TLS_VARIABLES}
        return ClientConfig(**said) if any(said.values()) else None

    def __post_init__(self) -> None:
        said = [name for name in TLS_VARIABLES if getattr(self, name)]
        if said and not self.tls:
            raise ConfigError(f"KvClientConfig.{said[0]} says something about TLS, and tls is off")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("KvClientConfig.tls_certificate and tls_key go together: give both, or none")
        if not 0 < self.timeout_s <= MOST_TIMEOUT_S:
            raise ConfigError(f"timeout_s must be above 0 and at most {MOST_TIMEOUT_S:g}, not {self.timeout_s!r}")
        for name, least in (("outstanding_bytes", 64 * 1024), ("max_frame_bytes", 64 * 1024)):
            if not least <= getattr(self, name) < 2**31:
                raise ConfigError(f"{name} must be from {least} to {2**31 - 1}, not {getattr(self, name)!r}")


def checked_timeout_s(timeout: float | None, config: KvClientConfig) -> float:
    """Of a call, in seconds; None: the client's. InvalidInput."""
    if timeout is None:
        return config.timeout_s
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= MOST_TIMEOUT_S:
        raise InvalidInput(f"timeout is a number of seconds above 0, at most {MOST_TIMEOUT_S:g}, not {timeout!r:.60}")
    return timeout
