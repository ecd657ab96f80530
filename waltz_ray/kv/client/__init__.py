"""The Python client of the key/value layer; ``waltz_ray.kv`` exports what applications use.

| module | what |
|---|---|
| ``client``, ``aio`` | the two clients: for threads, and for coroutines |
| ``items``, ``locks``, ``scanning``, ``watching`` | what they do |
| ``engine`` | connections to all actors, retries, exactly once |
| ``errands`` | jobs, the commands they become, what answers mean |
| ``table`` | who has which bucket, as far as was heard |
| ``link`` | one connection |
| ``connecting``, ``place``, ``members`` | which cluster, and where its actors are |
"""
