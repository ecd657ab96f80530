#!/bin/sh
# The pipeline (docs/pipeline.md) as a Ray job, on a Ray cluster that is running already: a cluster of its own is brought
# up on that Ray, Spark runs there through RayDP, and both are taken down again. The job fails if anything differs.
#
#   RAY_API_SERVER_ADDRESS=http://<head>:8265 deploy/pipeline.sh <directory> [more options of waltz pipeline]
#
# <directory> is new, on a file system that all nodes see. waltz_ray and a Java 17 on PATH must be there on every node.
# With --cluster NAME the job appends to a cluster that runs on that Ray, and leaves it running.
set -eu
directory=${1:?"usage: deploy/pipeline.sh <directory> [options of waltz pipeline]"}
shift
cd "$(dirname "$0")"
exec ray job submit --working-dir . -- python -m waltz_ray pipeline --address auto --dir "$directory" "$@"
