"""The files of ``make_certificates`` as a cluster's settings name them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from waltz_ray.config import ServerConfig

__all__ = ["TlsFiles", "takes_tokens", "tls_files"]


class TlsFiles(NamedTuple):
    """Paths of PEM files."""

    certificate: str
    key: str
    authority: str


def tls_files(directory: Path) -> TlsFiles:
    """Of the cluster itself."""
    return TlsFiles(*(f"{directory}/{name}" for name in ("server.pem", "server.key", "authority.pem")))


def takes_tokens(files: TlsFiles) -> ServerConfig:
    """Servers that take TLS with a certificate or without one, as by ``waltz up --tls-tokens``."""
    return ServerConfig(
        tls_certificate=files.certificate,
        tls_key=files.key,
        tls_clients=files.authority,
        tls_certificates_optional=True,
        tls_authority=files.authority,
    )
