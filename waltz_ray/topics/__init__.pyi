# What ``__init__.py`` gives, for type checkers.
from waltz_ray.topics.client.aio import AsyncTopicClient as AsyncTopicClient
from waltz_ray.topics.client.client import TopicClient as TopicClient
from waltz_ray.topics.client.client import TopicConsumer as TopicConsumer
from waltz_ray.topics.client.client import TopicProducer as TopicProducer
from waltz_ray.topics.client.connecting import connect as connect
from waltz_ray.topics.client.connecting import connect_async as connect_async
from waltz_ray.topics.client.consumer import AsyncTopicConsumer as AsyncTopicConsumer
from waltz_ray.topics.client.membership import BoundGroup as BoundGroup
from waltz_ray.topics.client.messages import Message as Message
from waltz_ray.topics.client.messages import MessageBatch as MessageBatch
from waltz_ray.topics.client.outgoing import SentMessage as SentMessage
from waltz_ray.topics.client.producer import AsyncTopicProducer as AsyncTopicProducer
from waltz_ray.topics.client.producer import SentMany as SentMany
from waltz_ray.topics.client.settings import TopicClientConfig as TopicClientConfig
