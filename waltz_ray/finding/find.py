"""Which cluster is meant, and where it is: the same answer for the command line, ``connect``, Spark and Ray Data.

A cluster is named by its *place* (a directory, a Ray, a ZooKeeper), by its name, or by both. What is not given is taken
from the environment; what is not there either must be the only one there is. Nobody ever chooses among several: the
error lists them. In this order:

1. the place that was given: ``directory``, ``address`` (a Ray), ``zookeeper``;
2. that of WALTZ_DIR or WALTZ_ZOOKEEPER;
3. the Ray that this process belongs to: inside of a job, a task, an actor, after ``ray.init``;
4. the Ray of RAY_ADDRESS;
5. the clusters of this machine that ``waltz up`` has started a Ray for.

A cluster is found under its key (made once, in ZooKeeper): a directory and a manager say which one it has to be, and
``check_key`` compares that with what ZooKeeper has, so a port that somebody else's ZooKeeper took over is noticed.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import Any

from waltz_ray.coordination.cluster_nodes import ClusterInfo
from waltz_ray.errors import ClusterMismatch, ClusterNotFound, InvalidInput
from waltz_ray.finding import cluster_file, ray_lookup
from waltz_ray.finding.cluster_file import ClusterFile

__all__ = ["FoundCluster", "check_key", "find_cluster", "find_on_ray", "join_cluster", "local_file"]


@dataclass(frozen=True)
class FoundCluster:
    """``zookeeper``: its connect string. "" or None where nobody has said: ``ray`` (Ray's address), ``directory``,
    ``key``."""

    name: str
    zookeeper: str
    ray: str = ""
    directory: str = ""
    key: uuid.UUID | None = None


def find_cluster(
    cluster: str | None = None, directory: str | None = None, address: str | None = None, zookeeper: str | None = None
) -> FoundCluster:
    """The running cluster that is meant. "" is the same as None. Joins a Ray only if that is where it has to look.

    ClusterNotFound says what runs and how to name one; InvalidInput, if what was given contradicts itself.
    """
    place, name = _place(directory, address, zookeeper), _name(cluster)
    if place.zookeeper:
        return _in_zookeeper(name, place.zookeeper)
    if place.address:
        return _asked(*_on_ray(name, place.address))
    return _of_file(_file(name, place))


def find_on_ray(
    cluster: str | None = None, directory: str | None = None, address: str | None = None
) -> tuple[str, str]:
    """(name, Ray's address) of the running cluster that is meant; this process has joined that Ray then.

    As ``find_cluster``, but nobody of the cluster has to answer.
    """
    place, name = _place_with_ray(directory, address), _name(cluster)
    if place.address:
        return _on_ray(name, place.address)
    known = _file(name, place)
    return known.name, ray_lookup.join(known.address)


def local_file(cluster: str | None, directory: str | None, address: str | None) -> ClusterFile | None:
    """The cluster of this machine that is meant, which need not run if its directory is given; None if it is one on a
    Ray that was named by its address. Errors as of ``find_cluster``."""
    place = _place(directory, address, None)
    if place.address or place.zookeeper:
        return None
    name = _name(cluster)
    known = cluster_file.read(place.directory) if place.directory else None
    if known is not None and not known.running and name in ("", known.name):
        return known
    return _file(name, place)


def join_cluster(
    cluster: str | None = None, directory: str | None = None, address: str | None = None, **options: Any
) -> str:
    """This process belongs to the cluster's Ray then; its address. A process that belongs to one already stays there.

    ``options`` are ``ray.init``'s. As ``find_cluster``, but nothing of the cluster has to answer, nor to be there.
    """
    if not (directory or address) and (now := ray_lookup.here()):
        return now
    place = _place_with_ray(directory, address)
    return ray_lookup.join(place.address or _file(_name(cluster), place).address, **options)


def check_key(found: FoundCluster, info: ClusterInfo) -> None:
    """ClusterMismatch if what ZooKeeper has is not the cluster that was meant."""
    if found.key is not None and found.key != info.cluster_key:
        whose = f"{found.directory} holds" if found.directory else f"the Ray at {found.ray} has"
        raise ClusterMismatch(
            f"the ZooKeeper at {found.zookeeper} has another cluster {found.name!r} than the one that {whose} "
            "(their keys differ); start yours again with: waltz up"
        )


@dataclass(frozen=True)
class _Place:
    """Where to look; all "": among the clusters of this machine. ``address`` beside ``directory`` only confirms it."""

    directory: str = ""
    address: str = ""
    zookeeper: str = ""
    confirm: str = ""


def _place(directory: str | None, address: str | None, zookeeper: str | None) -> _Place:
    """What was given, or what the environment says."""
    directory = _text("the directory", directory)
    address, zookeeper = _text("Ray's address", address), _text("ZooKeeper's address", zookeeper)
    if zookeeper and (directory or address):
        raise InvalidInput("a ZooKeeper finds a cluster alone; leave out its directory and Ray's address")
    if directory:
        return _Place(directory, confirm=address)
    if zookeeper or address:
        return _Place("", address, zookeeper)
    directory, zookeeper = os.environ.get("WALTZ_DIR", ""), os.environ.get("WALTZ_ZOOKEEPER", "")
    if directory and zookeeper:
        raise InvalidInput("WALTZ_DIR and WALTZ_ZOOKEEPER are both set; unset one, or say which cluster is meant")
    if directory or zookeeper:
        return _Place(directory, "", zookeeper)
    return _Place("", ray_lookup.here() or os.environ.get("RAY_ADDRESS", ""))


def _place_with_ray(directory: str | None, address: str | None) -> _Place:
    place = _place(directory, address, None)
    if place.zookeeper:
        raise InvalidInput(f"the ZooKeeper at {place.zookeeper} knows no Ray; give the cluster's directory or address")
    return place


def _name(cluster: str | None) -> str:
    """The name that was given, or that of the environment."""
    return _text("the cluster's name", cluster) or os.environ.get("WALTZ_CLUSTER", "")


def _text(what: str, given: str | os.PathLike[str] | None) -> str:
    """InvalidInput for what is no text, nor a path."""
    text = "" if given is None else given if isinstance(given, str) else getattr(given, "__fspath__", lambda: None)()
    if not isinstance(text, str) or "\0" in text:
        raise InvalidInput(f"{what} must be a text, not {given!r:.60}")
    return text


def _file(name: str, place: _Place) -> ClusterFile:
    known = cluster_file.find_running(place.directory, name)
    if place.confirm not in ("", "auto") and ray_lookup.reachable(place.confirm) != ray_lookup.reachable(known.address):
        raise InvalidInput(
            f"cluster {known.name!r} of {place.directory} runs on the Ray at {known.address}, not at {place.confirm}; "
            "leave one of the two out"
        )
    return known


def _of_file(known: ClusterFile) -> FoundCluster:
    if not known.zookeeper:
        raise ClusterNotFound(f"cluster {known.name!r} of {known.directory} is still starting; wait for its waltz up")
    key = uuid.UUID(known.key) if known.key else None
    return FoundCluster(known.name, known.zookeeper, ray_lookup.reachable(known.address), known.directory, key)


def _in_zookeeper(name: str, zookeeper: str) -> FoundCluster:
    if not name:
        raise InvalidInput(
            f"the ZooKeeper at {zookeeper} may have several clusters; give the cluster's name, too (or WALTZ_CLUSTER)"
        )
    return FoundCluster(name, zookeeper)


def _on_ray(name: str, address: str) -> tuple[str, str]:
    joined = ray_lookup.join(address)
    if name:
        return name, joined
    names = ray_lookup.cluster_names()
    if not names:
        raise ClusterNotFound(f"no cluster runs on the Ray at {joined}; start one with: waltz up --address {joined}")
    if len(names) > 1:
        raise ClusterNotFound(f"several clusters run on the Ray at {joined}: {', '.join(names)}; say which by its name")
    return names[0], joined


def _asked(name: str, joined: str) -> FoundCluster:
    location = ray_lookup.ask_manager(name)
    return FoundCluster(name, location["zookeeper"], joined, "", uuid.UUID(location["cluster_key"]))
