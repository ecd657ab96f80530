"""Who is who: the cluster's secret and its file, and the handshakes in which it is proved (docs/security.md).

| module | what |
|---|---|
| ``secret_file`` | the file: made once, read by every process that needs it, read again when it has changed |
| ``addresses`` | what would listen beyond loopback, and is refused unless somebody has said that it may |
| ``certificates`` | an authority and certificates for development |
| ``handshakes`` | the two sides of a connection to a replica: ``Doorkeeper`` there, ``Keyring`` of who opens it |
"""
