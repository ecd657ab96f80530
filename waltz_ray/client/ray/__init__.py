"""The log for users of Ray Data: ``feed_dataset``. Importing this imports ``ray.data``."""

from waltz_ray.client.ray.dataset import feed_dataset

__all__ = ["feed_dataset"]
