"""What a key/value client can be told."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from waltz_ray.errors import ConfigError, InvalidInput
from waltz_ray.net.tls import client_context

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
    """Speak TLS, to ports that have a certificate (``KvConfig.tls_certificate``), and nothing else."""
    tls_authority: str = ""
    """PEM file of whom the ports' certificates are from; empty: the system's choice."""

    def context(self) -> ssl.SSLContext | None:
        """For the next connection; None: it is plain. OSError if the file cannot be used."""
        return client_context(self.tls_authority or None) if self.tls else None

    def __post_init__(self) -> None:
        if self.tls_authority and not self.tls:
            raise ConfigError("KvClientConfig.tls_authority says whom to trust with TLS, and tls is off")
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
        raise InvalidInput(f"timeout is a number of seconds above 0, at most {MOST_TIMEOUT_S:g}, not {timeout!r}")
    return timeout
