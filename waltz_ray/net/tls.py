"""What listeners and connectors are given for TLS. Nothing of it is on unless it is given."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import ssl
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from waltz_ray.errors import ConfigError
from waltz_ray.runtime.seldom import Seldom
from waltz_ray.small_files import nobody_types

__all__ = [
    "TLS_HANDSHAKE",
    "ClientTls",
    "ServerTls",
    "Stamps",
    "certificate_name",
    "check_believed",
    "client_context",
    "peer_channel",
    "replica_tls",
    "server_context",
    "stamps_of",
]

log = logging.getLogger(__name__)

TLS_HANDSHAKE = 0x16
"""The first byte of every TLS client, and of none of our protocols (H, and nothing else)."""

_LOG_EVERY_S = 60.0
_FIRST_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def server_context(certificate: str, key: str, clients: str | None = None, optional: bool = False) -> ssl.SSLContext:
    """The context of who accepts, from PEM files.

    ``clients`` is whom a client's own certificate has to be from; None: it needs none. ``optional``: it may have none.
    OSError, which ssl.SSLError is, for files that cannot be used, as where the key is encrypted.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # or a stranger could ask for one after the other, before OpenSSL 3
    context.load_cert_chain(certificate, key, nobody_types)
    if clients is not None:
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    return context


def certificate_name(certificate: Mapping[str, Any] | None) -> str:
    """The common name of its subject, as ``getpeercert`` tells it of one that was verified; "" = there is none."""
    subject = () if certificate is None else certificate.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return str(names[-1]) if names else ""


Stamps = tuple[tuple[int, int, int], ...]


def stamps_of(files: Iterable[str]) -> Stamps:
    """What differs when one of them is another file than it was, or has other content. OSError if one is not there."""
    return tuple((about.st_ino, about.st_mtime_ns, about.st_size) for about in map(os.stat, files))


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
        self._context, self._channel = self._read()

    def __call__(self) -> ssl.SSLContext:
        """For the next connection."""
        return self.with_channel()[0]

    def with_channel(self) -> tuple[ssl.SSLContext, bytes]:
        """For the next connection, and what ``peer_channel`` is at its other end."""
        with self._lock:
            try:
                seen = self._look()
                if seen != self._seen:
                    self._context, self._channel = self._read()
                    self._seen = seen
                    log.info("%s was read again", self._files[0])
            except OSError as error:
                if self._told.due():
                    files = ", ".join(filter(None, self._files))
                    log.warning("%s cannot be used, what was read before stays in use: %s", files, error)
            return self._context, self._channel

    def _read(self) -> tuple[ssl.SSLContext, bytes]:
        channel = _file_channel(self._files[0])
        context = server_context(*self._files, self._optional)
        if _file_channel(self._files[0]) != channel:
            raise OSError(f"{self._files[0]} was being written")
        return context, channel

    def _look(self) -> Stamps:
        return stamps_of(path for path in self._files if path is not None)


def client_context(
    servers: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """The context of who opens: ``servers`` is whom the server's certificate has to be from, None: the system's choice.

    It has to name the host that is connected to. ``certificate`` and ``key`` say who the client is, if that is asked.
    OSError as of ``server_context``.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=servers)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        context.load_cert_chain(certificate, key, nobody_types)
    return context


def check_believed(certificate: str, key: str, authority: str, host: str) -> None:
    """OSError, which ssl.SSLError is, unless who connects to ``host`` and trusts ``authority`` believes who shows this
    certificate there now: both meet in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    opener = client_context(authority).wrap_bio(to_client, to_server, server_hostname=host)
    accepter = server_context(certificate, key).wrap_bio(to_server, to_client, server_side=True)
    for side in (opener, accepter, opener):  # hello, certificate, verdict
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


class ClientTls:
    """``client_context`` of a file with authorities, read again when it has changed. Only its path is ever pickled."""

    def __init__(self, authority: str, what: str) -> None:
        """``what`` names the setting that ``authority`` comes from."""
        self._authority, self._what = authority, what
        self._made: tuple[Stamps, ssl.SSLContext] | None = None

    def __call__(self) -> ssl.SSLContext:
        """For the next connection. ConfigError if the file cannot be used."""
        try:
            seen = stamps_of([self._authority])
            made = self._made
            if made is None or made[0] != seen:
                made = self._made = seen, client_context(self._authority)
            return made[1]
        except OSError as error:  # which ssl.SSLError is
            raise ConfigError(
                f"{self._what}, {self._authority}, cannot be used: {error.strerror or error}; it has to be a PEM file, "
                "on every node"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return ClientTls, (self._authority, self._what)


def replica_tls(authority: str) -> ClientTls | None:
    """Of who connects to replicas. ``authority``: StorageConfig.tls_authority, or a copy; "" = they speak plain."""
    return ClientTls(authority, "StorageConfig.tls_authority") if authority else None


def peer_channel(connection: ssl.SSLSocket | ssl.SSLObject | None) -> bytes:
    """What is known of the encryption to who was connected to: his certificate, hashed; "" = there is none."""
    certificate = None if connection is None else connection.getpeercert(binary_form=True)
    return b"" if certificate is None else hashlib.sha256(certificate).digest()


def _file_channel(path: str) -> bytes:
    """``peer_channel`` of who is connected to a port with this certificate."""
    with open(path, encoding="ascii", errors="replace") as file:
        found = _FIRST_CERTIFICATE.search(file.read())
    if found is None:
        raise OSError(f"there is no certificate in {path}")
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(found.group())).digest()
    except ValueError as error:  # no base64, or not even ASCII
        raise OSError(f"what {path} has where a certificate should be is none: {error}") from error
