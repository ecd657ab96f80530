"""Sockets, once: what is true of every connection, whoever speaks over it and whichever side opened it.

It knows frames and errors (``wire.framing``, ``errors``) and nothing else of ours: no messages, no machines, no Ray.

| module | what |
|---|---|
| ``stream`` | one asyncio connection: frames in and out, back-pressure, patience, one end |
| ``framer`` | what cuts a connection's bytes into frames |
| ``outgoing`` | what is sent while one piece of input is handled leaves together |
| ``blocking`` | one blocking connection: a receive buffer of whole frames, sends with time-outs |
| ``listener`` | accepting connections, in a loop or in threads, whatever there is a lack of |
| ``connector`` | opening a connection, and what every socket is told (keep-alive) |
| ``limit``, ``seldom`` | how many connections there may be; log lines that nobody can make a flood of |
| ``tls`` | contexts that listeners and connectors take |
| ``backoff`` | how long to wait before trying again |
| ``room`` | bytes outstanding, of all connections together |
| ``half_frames`` | frames that are not whole: what is kept of them, and that they get on |
"""
