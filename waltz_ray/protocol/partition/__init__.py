"""One partition on its server: ``machine`` has the whole, ``state`` what its parts share."""
