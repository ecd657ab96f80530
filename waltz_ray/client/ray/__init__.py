"""The log for users of Ray Data: ``read_dataset``, ``WaltzDatasink``. Importing this imports ``ray.data``."""

from waltz_ray.client.ray.dataset import read_dataset
from waltz_ray.client.ray.datasink import WaltzDatasink, block_rows

__all__ = ["WaltzDatasink", "block_rows", "feed_dataset", "read_dataset"]

feed_dataset = read_dataset  # its name before there was a datasink
"""The former name of ``read_dataset``."""
