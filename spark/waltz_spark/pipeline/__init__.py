"""``waltz pipeline``: the whole way from appends to mirrored files, compared at five places (``docs/pipeline.md``)."""
