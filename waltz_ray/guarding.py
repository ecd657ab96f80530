"""What guards a cluster's ports beside its settings, as ``waltz up`` finds it or sets it: rights, users of topics."""

from __future__ import annotations

import json
from pathlib import Path

from waltz_ray.config import ClusterConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.topic_store import TopicStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.access import SpaceRules
from waltz_ray.security.addresses import Guards
from waltz_ray.security.client_rights import check_rights_can_hold, read_rights
from waltz_ray.wire.access_document import decode_access_rules

__all__ = ["guards_of_file", "guards_with_rights"]


def guards_of_file(config: ClusterConfig) -> Guards:
    """As they will be in a cluster that is not there yet."""
    return Guards(read_rights(Path(config.rights_file))[1]) if config.rights_file else Guards()


def guards_with_rights(zookeeper: str, config: ClusterConfig) -> Guards:
    """What guards the cluster now; rights of clients are set from the file if there are none. InvalidInput."""
    client = KazooZooKeeper(zookeeper)
    try:
        access, layers = ClusterStore(client, config.name).access, LayerStore(client, config.name)
        data, version = access.document()
        if version < 0 and config.rights_file:
            data, _ = read_rights(Path(config.rights_file))
            topics = max(config.topics.actors, layers.actors("topic"))
            check_rights_can_hold(config, max(config.kv.actors, layers.actors("kv"), min(topics, 1)), topics)
            if not access.replace(data, version):
                data, version = access.document()  # somebody was faster
        try:
            rights = decode_access_rules(data) if data else None
        except InvalidInput:
            rights = SpaceRules(tls_only=True)  # servers let nobody in, and say why
        return Guards(rights, _topics_authenticate(TopicStore(client, config.name).document("access")[0]))
    finally:
        client.close()


def _topics_authenticate(document: bytes) -> bool:
    try:
        return bool(document) and dict(json.loads(document)).get("authenticate") is True
    except (ValueError, TypeError, RecursionError):
        return False  # what it makes of the document is the actors' to say
