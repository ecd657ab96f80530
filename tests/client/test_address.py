"""What does not travel to Ray's tasks and actors says what does."""

from __future__ import annotations

import pickle

import pytest

from waltz_ray import Spaces
from waltz_ray.client.aio_cursors import AsyncCursor
from waltz_ray.client.followers import AsyncFollower
from waltz_ray.errors import InvalidInput
from waltz_ray.kv.client.client import KvLock, KvMap
from waltz_ray.kv.client.items import AsyncKvMap
from waltz_ray.kv.client.locks import AsyncKvLock
from waltz_ray.kv.client.watching import AsyncKvWatch, KvWatch
from waltz_ray.members import Members
from waltz_ray.testing import InMemoryCluster
from waltz_ray.topics.client.client import TopicConsumer, TopicProducer
from waltz_ray.topics.client.consumer import AsyncTopicConsumer
from waltz_ray.topics.client.producer import AsyncTopicProducer

CLASSES: list[type[object]] = [
    *(Spaces, Members, AsyncCursor, AsyncFollower, KvMap, KvLock, KvWatch, AsyncKvMap, AsyncKvLock, AsyncKvWatch),
    *(TopicProducer, TopicConsumer, AsyncTopicProducer, AsyncTopicConsumer),
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_what_is_of_one_process_says_so(kind: type[object]) -> None:
    with pytest.raises(InvalidInput, match=f"^{kind.__name__} does not pickle: it is of this process; give its client"):
        pickle.dumps(kind.__new__(kind))


def test_what_was_made_of_a_client_says_so() -> None:
    """It was "cannot pickle '_thread.lock' object"."""
    with InMemoryCluster() as cluster, cluster.connect() as client:
        with client.cursor("audit") as cursor, pytest.raises(InvalidInput, match="Cursor does not pickle"):
            pickle.dumps(cursor)
        with client.feed(0, follow=True) as follower, pytest.raises(InvalidInput, match="Follower does not pickle"):
            pickle.dumps(follower)
