"""What listeners and connectors are given for TLS. Nothing of it is on unless it is given."""

from __future__ import annotations

import ssl

__all__ = ["client_context", "server_context"]


def server_context(certificate: str, key: str, clients: str | None = None) -> ssl.SSLContext:
    """The context of who accepts, from PEM files.

    ``clients`` is whom a client's own certificate has to be from; None: it needs none.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


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
