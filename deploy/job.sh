#!/bin/sh
# Bring a cluster up on a Ray cluster that is running already, as a Ray job. The job ends when every partition is
# ready; the actors are detached and stay. Run it again at any time: it starts what is missing and changes nothing else.
#
#   RAY_API_SERVER_ADDRESS=http://<head>:8265 deploy/job.sh <directory> <zookeeper> [more options of waltz up]
#
# <directory> is the path on every storage node; <zookeeper> is host:port,... ("" = an embedded one, on the head node).
# waltz_ray must be installed on every node (cluster.yaml does it), in the Python that runs Ray.
set -eu
directory=${1:?"usage: deploy/job.sh <directory> <zookeeper> [options of waltz up]"}
zookeeper=${2-}
shift
[ $# -eq 0 ] || shift
[ -z "$zookeeper" ] || set -- --zookeeper "$zookeeper" "$@"
cd "$(dirname "$0")"
exec ray job submit --working-dir . -- python -m waltz_ray up --address auto --dir "$directory" "$@"
