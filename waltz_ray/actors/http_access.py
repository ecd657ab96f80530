"""Who is told what at the manager's HTTP port, while there are rights of clients (docs/security.md, "The HTTP port").

Who comes is who its certificate says, or whose token it shows: as ``Bearer``, or as the password of ``Basic``, for
which a browser asks people. Probes are answered to everybody, with yes or no; why no is for who may see the
cluster's state.
"""

from __future__ import annotations

from collections.abc import Callable

from waltz_ray.actors.access_guard import PLAIN_TOKEN, AccessGuard
from waltz_ray.protocol.access import ANY, SEES_CLUSTER, Comer, SpaceRules, having_shown, why_refused
from waltz_ray.wire.http import HttpRequest, HttpResponse, token_in

__all__ = ["Answer", "HttpAccess", "is_probe"]

Answer = Callable[[HttpRequest], HttpResponse]

_CHALLENGE = 'Basic realm="waltz", charset="UTF-8"'
_UNKNOWN = ("nobody", "wrong_token", "unknown_client")
"""Reasons that another token mends, so that a browser should ask for one."""


def is_probe(path: str) -> bool:
    """Whether everybody is answered there, with yes or no."""
    return path in ("/healthz", "/readyz") or path.startswith("/readyz/")


class HttpAccess:
    """Of one port. ``answer`` runs in its thread; what else the guard does there is to read what holds now."""

    def __init__(self, guard: AccessGuard, takes_tls: bool) -> None:
        """``takes_tls``: who is refused for lack of it can be told to use it."""
        self._guard, self._takes_tls = guard, takes_tls

    def answer(self, request: HttpRequest, comer: Comer, peer: str, answer: Answer) -> HttpResponse:
        """``answer(request)``, or what is told instead. ``comer``: as far as the connection tells."""
        rules = self._guard.rules
        found = None if rules is None else _why_not(rules, request, comer)
        if found is None:
            return answer(request)
        if is_probe(request.path):
            return _yes_or_no(answer(request))
        reason, why = found
        self._guard.count(reason, peer, f"{request.method} {request.path:.80}: {why}")
        if comer.tls and reason in _UNKNOWN:
            return HttpResponse(401, f"{why}\n".encode(), challenge=_CHALLENGE)
        return HttpResponse(403, f"{why}{self._where(comer)}\n".encode())

    def _where(self, comer: Comer) -> str:
        if comer.tls:
            return ""
        if self._takes_tls:
            return "; this port takes TLS, too: use https://"
        return "; this port has no TLS (HttpConfig.tls_certificate), so nobody can show who he is here"


def _why_not(rules: SpaceRules, request: HttpRequest, comer: Comer) -> tuple[str, str] | None:
    if request.authorization:
        if not comer.tls:
            return "plain_token", PLAIN_TOKEN
        comer = having_shown(comer, token_in(request.authorization) or "", rules)
    return why_refused(rules, comer, ANY, SEES_CLUSTER)


def _yes_or_no(response: HttpResponse) -> HttpResponse:
    """Without what it says of the cluster, and of which actors it has."""
    return HttpResponse(200, b"yes\n") if response.status == 200 else HttpResponse(503, b"no\n")
