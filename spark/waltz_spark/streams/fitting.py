"""Whether the services of one file fit together: every link known at both its ends, nothing done twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.claims import overlap
from waltz_spark.streams.collector import CollectorSettings
from waltz_spark.streams.layout import checked_name
from waltz_spark.streams.settings import CategoryRetention, StreamSettings

__all__ = ["fit_problems", "with_category_retention"]


def fit_problems(collectors: Sequence[CollectorSettings], services: Sequence[StreamSettings]) -> Iterator[str]:
    """What does not fit together, each in one line."""
    names = [*(each.name for each in collectors), *(each.name for each in services)]
    if not names:
        yield "there is no [collectors.NAME] and no [services.NAME] in it"
    for name in names:
        if names.count(name) > 1:
            yield f"{name} is a collector and a service; both would write /databus/{name}: give one another name"
        try:
            checked_name("name", name)
        except InvalidInput as error:
            yield str(error)
    by_name = {each.name: each for each in services}
    for service in services:
        yield from _link_problems(service, by_name)
    locals_ = [each for each in services if each.kind == "local"]
    for number, one in enumerate(locals_):
        for other in locals_[number + 1 :]:
            if one.root == other.root and overlap(one.categories, other.categories):
                yield (
                    f"{one.name} and {other.name} would both take the same categories from {one.root}, and publish "
                    "them twice; let one of them go, or give each its own categories"
                )
    places = [(each.root, each.kind) for each in services if each.kind == "local"]
    for collector in collectors:
        if services and (collector.root, "local") not in places:
            yield f"collector {collector.name} writes to {collector.root}, where the file has no local service"


def with_category_retention(services: Sequence[StreamSettings]) -> tuple[StreamSettings, ...]:
    """Each with what other services of its root keep longer of its categories: a category's retention on a root is the
    largest of those, as Databus has it (max of local and merged). The roots must be normal ones."""
    return tuple(
        replace(
            one,
            also_kept=tuple(
                CategoryRetention(other.categories, other.retention_hours)
                for other in services
                if other.root == one.root
                and other.retention_hours > one.retention_hours
                and overlap(one.categories, other.categories)
            ),
        )
        for one in services
    )


def _link_problems(service: StreamSettings, services: Mapping[str, StreamSettings]) -> Iterator[str]:
    for source in service.sources:
        producer = services.get(source.producer)
        if producer is None:
            continue  # an outside one
        if service.name not in producer.consumers:
            yield (
                f"{service.name} takes from {producer.name}, which does not announce to it; add it to the consumers of "
                f"[services.{producer.name}]"
            )
        wanted = "local" if service.kind == "merged" else "merged or mirror"
        if producer.kind not in wanted.split(" or "):
            yield f"{service.name}, a {service.kind}, takes from a {wanted}; {producer.name} is a {producer.kind}"
    for name in service.consumers:
        consumer = services.get(name)
        if consumer is not None and service.name not in [source.producer for source in consumer.sources]:
            yield (
                f"{service.name} announces to {name}, which does not take from it; add it to the sources of "
                f"[services.{name}]"
            )
