"""A cluster as its deployment file says, on a Ray that runs already: a Ray job.

    RAY_API_SERVER_ADDRESS=http://HEAD:8265 \\
        ray job submit --working-dir . -- python deploy/bring_up.py --config deploy/cluster.yaml

The job ends when everything serves; the actors are detached and stay. Run it again at any time: it starts what is
missing and changes what the file has anew. It is ``waltz apply`` and has its options: --dry-run shows the difference.
"""

import sys

from waltz_ray.cli import main

if __name__ == "__main__":
    main(["apply", *sys.argv[1:]])
