"""What serves a kv space: the gateway that its clients connect to, and links to other members. docs/opencluster.md.

| module | what |
|---|---|
| ``gateway`` | the port of one space: listener, announcements, its end |
| ``connection`` | one connection of it: frames, what it answers itself, what it holds back |
| ``port`` | what the gateway asks of the node, its limits, its counts |
| ``peer_link`` | the other side: a member's connection to another member's gateway |
"""
