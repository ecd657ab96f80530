"""Settings of a client of topics."""

from __future__ import annotations

from dataclasses import dataclass, field

from waltz_ray.errors import ConfigError

__all__ = ["TopicClientConfig"]


_MOST_S = 86_400.0


@dataclass(frozen=True)
class TopicClientConfig:
    """Times in seconds, at most a day. ConfigError if a value is out of range."""

    user: str = ""
    """Who we are, where the cluster asks for that; empty: nobody."""
    password: str = field(default="", repr=False)
    tls: bool = False
    """Ports of topics speak TLS (``TopicConfig.tls_certificate``)."""
    tls_authority: str = ""
    """PEM file of whom the ports' certificates are from; empty: the system's choice."""
    timeout_s: float = 10.0
    """Of one request, and of opening a connection."""
    heartbeat_s: float = 1.0
    """Between two heartbeats to the master. It forgets who was not heard of for ``TopicConfig.client_ms``."""
    idle_s: float = 180.0
    """A connection that nobody has used for so long is closed; the next request opens another one."""
    outstanding_bytes: int = 64 << 20
    """Of messages of one producer without a fate: at so many it waits."""
    ahead_bytes: int = 4 << 20
    """What a consumer reads ahead of its application, of each partition."""

    def __post_init__(self) -> None:
        for name in ("timeout_s", "heartbeat_s", "idle_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST_S:
                raise ConfigError(
                    f"TopicClientConfig.{name} must be a number of seconds above 0 and at most {_MOST_S:g}, "
                    f"not {value!r:.60}"
                )
        for name in ("outstanding_bytes", "ahead_bytes"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"TopicClientConfig.{name} must be more than 0, not {getattr(self, name)}")
        if self.tls_authority and not self.tls:
            raise ConfigError("TopicClientConfig.tls_authority says whom to trust with TLS, and tls is off")
