"""Topics (TubeMQ): an application of the log. docs/topics.md for applications, docs/tubemq.md for the protocol.

``connect`` gives a client, ``connect_async`` one for coroutines; the other names are what an application writes or is
given. Each is imported when it is asked for: the actors load no client. What the names are, for type checkers, is in
``__init__.pyi``.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "AsyncTopicClient": "client.aio",
    "AsyncTopicConsumer": "client.consumer",
    "AsyncTopicProducer": "client.producer",
    "BoundGroup": "client.membership",
    "Message": "client.messages",
    "MessageBatch": "client.messages",
    "SentMany": "client.producer",
    "SentMessage": "client.outgoing",
    "TopicClient": "client.client",
    "TopicClientConfig": "client.settings",
    "TopicConsumer": "client.client",
    "TopicProducer": "client.client",
    "connect": "client.connecting",
    "connect_async": "client.connecting",
}

__all__ = [
    "AsyncTopicClient",
    "AsyncTopicConsumer",
    "AsyncTopicProducer",
    "BoundGroup",
    "Message",
    "MessageBatch",
    "SentMany",
    "SentMessage",
    "TopicClient",
    "TopicClientConfig",
    "TopicConsumer",
    "TopicProducer",
    "connect",
    "connect_async",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
