"""The deployment file: a cluster in one page of YAML, read with its lines, compared with what runs, and applied.

``file.py`` what may stand in it, ``yaml_reader.py`` how it is read, ``difference.py`` what would have to change,
``stages.py`` how settings become others while the cluster serves, ``applying.py`` what is done about it. For people:
``waltz apply``, and docs/deployment.md.
"""

from waltz_ray.deployment.applying import AppliedDeployment, apply, compare
from waltz_ray.deployment.difference import Change, Verb
from waltz_ray.deployment.file import Deployment, RayConfig, SpaceConfig, parse, read

__all__ = [
    "AppliedDeployment",
    "Change",
    "Deployment",
    "RayConfig",
    "SpaceConfig",
    "Verb",
    "apply",
    "compare",
    "parse",
    "read",
]
