"""The environment of a Ray of our own; that it runs is seen by every test with a cluster."""

from __future__ import annotations

import pytest

from waltz_ray.actors import local_ray


def test_a_token_of_somebody_else_s_ray_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray start` asks for one where ~/.ray has it, and ray.init(address=...) would not send it."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert local_ray._environment(1, 2)["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_ENABLE_AUTO_CONNECT" not in local_ray._environment(1, 2), "jobs on it are the user's"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert local_ray._environment(1, 2)["RAY_AUTH_MODE"] == "token"
