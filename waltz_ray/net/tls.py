"""What listeners and connectors are given for TLS. Nothing of it is on unless it is given."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Mapping
from typing import Any

from waltz_ray.runtime.seldom import Seldom

__all__ = ["TLS_HANDSHAKE", "ServerTls", "certificate_name", "client_context", "server_context"]

log = logging.getLogger(__name__)

TLS_HANDSHAKE = 0x16
"""The first byte of every TLS client, and of none of our protocols (H, and nothing else)."""

_LOG_EVERY_S = 60.0


def server_context(certificate: str, key: str, clients: str | None = None, optional: bool = False) -> ssl.SSLContext:
    """The context of who accepts, from PEM files.

    ``clients`` is whom a client's own certificate has to be from; None: it needs none. ``optional``: it may have none.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    if clients is not None:
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    return context


def certificate_name(certificate: Mapping[str, Any] | None) -> str:
    """The common name of its subject, as ``getpeercert`` tells it of one that was verified; "" = there is none."""
    subject = () if certificate is None else certificate.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return str(names[-1]) if names else ""


class ServerTls:
    """``server_context`` of files that are read again when one of them has changed. For several threads.

    Connections that are there keep what they began with. Files that cannot be used (one is new, the other still to be
    written) are told in the log, and what was read last stays: a port does not go away for them.
    """

    def __init__(self, certificate: str, key: str, clients: str | None = None, optional: bool = False) -> None:
        """OSError, which ssl.SSLError is, if the files cannot be used now."""
        self._optional = optional
        self._files = certificate, key, clients
        self._lock = threading.Lock()
        self._told = Seldom(_LOG_EVERY_S)
        self._seen = self._look()
        self._context = server_context(certificate, key, clients, optional)

    def __call__(self) -> ssl.SSLContext:
        """For the next connection."""
        with self._lock:
            try:
                seen = self._look()
                if seen != self._seen:
                    self._context = server_context(*self._files, self._optional)
                    self._seen = seen
                    log.info("%s was read again", self._files[0])
            except OSError as error:
                if self._told.due():
                    files = ", ".join(filter(None, self._files))
                    log.warning("%s cannot be used, what was read before stays in use: %s", files, error)
            return self._context

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        found = [os.stat(path) for path in self._files if path is not None]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


def client_context(
    servers: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """The context of who opens: ``servers`` is whom the server's certificate has to be from, None: the system's choice.

    It has to name the host that is connected to. ``certificate`` and ``key`` say who the client is, if that is asked.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=servers)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context
