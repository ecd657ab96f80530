"""The files for clusters of several machines: they are what their readers take, and agree with each other.

Nothing here starts a container: what was not run is said in deploy/README.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from waltz_ray.compat import tomllib
from waltz_ray.deployment import Deployment, parse, read

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROJECT = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
REPLICAS = range(3)


def texts(value: Any) -> Any:
    """An object whose values are texts: what an environment is."""
    return {"type": "object", "additionalProperties": {"type": "string"}} | value


STRINGS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
SERVICE: dict[str, Any] = {
    "type": "object",
    "required": ["image", "networks"],
    "additionalProperties": False,
    "properties": {
        "image": {"type": "string", "pattern": r"^[a-z-]+:[\d.]+$"},
        "build": {"type": "object", "required": ["context", "dockerfile"]},
        "command": STRINGS,
        "environment": texts({}),
        "volumes": STRINGS,
        "ports": {"type": "array", "items": {"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}},
        "networks": {"type": ["array", "object"]},
        "depends_on": {"type": ["array", "object"]},
        "healthcheck": {"type": "object", "required": ["test"]},
        "restart": {"enum": ["no", "unless-stopped"]},
        "init": {"type": "boolean"},
        "shm_size": {"type": "string"},
        "stop_grace_period": {"type": "string"},
    },
}
COMPOSE = {
    "type": "object",
    "required": ["services", "networks", "volumes"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "properties": {
        "name": {"type": "string"},
        "services": {"type": "object", "additionalProperties": SERVICE},
        "networks": {"type": "object"},
        "volumes": {"type": "object", "additionalProperties": {"type": "null"}},
    },
}
QUANTITY = {"type": "string", "pattern": r"^\d+(Mi|Gi|m)?$"}
RESOURCES = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": QUANTITY}}
CONTAINER = {
    "type": "object",
    "required": ["name", "image", "resources", "volumeMounts"],
    "properties": {
        "env": {
            "type": "array",
            "items": {"type": "object", "required": ["name"], "properties": {"value": {"type": "string"}}},
        },
        "resources": RESOURCES,
        "volumeMounts": {"type": "array", "items": {"type": "object", "required": ["name", "mountPath"]}},
    },
}
POD = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["containers", "volumes"],
            "properties": {
                "containers": {"type": "array", "items": CONTAINER, "minItems": 1},
                "volumes": {"type": "array", "items": {"type": "object", "required": ["name"]}},
            },
        }
    },
}
GROUP = {
    "type": "object",
    "required": ["groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"],
    "additionalProperties": False,
    "properties": {
        "groupName": {"type": "string", "pattern": "^[a-z0-9-]+$"},
        **{name: {"const": 1} for name in ("replicas", "minReplicas", "maxReplicas")},
        "rayStartParams": texts({}),
        "template": POD,
    },
}
RAY_CLUSTER = {
    "type": "object",
    "required": ["rayVersion", "gcsFaultToleranceOptions", "headGroupSpec", "workerGroupSpecs"],
    "additionalProperties": False,
    "properties": {
        "rayVersion": {"type": "string"},
        "gcsFaultToleranceOptions": {
            "type": "object",
            "required": ["redisAddress", "externalStorageNamespace"],
            "additionalProperties": False,
            "properties": {
                "redisAddress": {"type": "string"},
                "redisPassword": {"type": "object", "required": ["valueFrom"]},
                "externalStorageNamespace": {"type": "string"},
            },
        },
        "headGroupSpec": {
            "type": "object",
            "required": ["rayStartParams", "template"],
            "additionalProperties": False,
            "properties": {"labels": texts({}), "rayStartParams": texts({}), "template": POD},
        },
        "workerGroupSpecs": {"type": "array", "items": GROUP, "minItems": 3},
    },
}
RAY_JOB = {
    "type": "object",
    "required": ["entrypoint", "clusterSelector"],
    "additionalProperties": False,
    "properties": {
        "entrypoint": {"type": "string"},
        "clusterSelector": texts({"required": ["ray.io/cluster"]}),
        "submissionMode": {"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        "shutdownAfterJobFinishes": {"const": False},
        "backoffLimit": {"type": "integer"},
    },
}


def valid(value: Any, schema: Mapping[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)
    assert [f"{list(each.path)}: {each.message}" for each in Draft202012Validator(schema).iter_errors(value)] == []


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def kubernetes() -> dict[str, list[dict[str, Any]]]:
    """Kind -> the objects of that kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in ("cluster.yaml", "job.yaml"):
        for each in yaml.safe_load_all((DEPLOY / "kuberay" / file).read_text()):
            assert each["apiVersion"] == ("ray.io/v1" if each["kind"].startswith("Ray") else "v1")
            found.setdefault(each["kind"], []).append(each)
    return found


def offered(text: str) -> dict[str, float]:
    """What ``ray start --resources`` is given, or KubeRay's parameter, whose quotes are a shell's."""
    found: dict[str, float] = json.loads(json.loads(text) if text.startswith('"') else text)
    return found


def assert_disks(disks: Mapping[str, str], deployment: Deployment) -> None:
    """Each replica has one node with its resource, and each node a disk of its own: resource -> disk."""
    assert set(disks) == {f"waltz-replica-{n}" for n in REPLICAS}
    assert len(set(disks.values())) == len(disks)
    assert deployment.cluster.replicas == len(REPLICAS)


def assert_reached_by_others(deployment: Deployment) -> None:
    """Nodes of several machines have one secret, and listen where not only they are."""
    assert deployment.cluster.secret_path == "/etc/waltz-secret/cluster.secret"
    assert deployment.cluster.insecure


# ---- ray up


def test_ray_up_takes_the_cluster_of_hosts() -> None:
    from ray import autoscaler
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    schema = json.loads((Path(autoscaler.__file__).parent / "ray-schema.json").read_text())
    valid(config, schema)
    prepared = prepare_config(config)
    validate_config(prepared)
    assert len(config["provider"]["worker_ips"]) == len(REPLICAS) == prepared["max_workers"]
    with pytest.raises(AssertionError, match="'min_workers' was unexpected"):
        valid(config | {"min_workers": 3}, schema)  # which Ray once took


# ---- compose


def test_compose_is_what_compose_takes() -> None:
    valid(compose(), COMPOSE)


def test_compose_names_what_there_is() -> None:
    found = compose()
    services, volumes = found["services"], set(found["volumes"])
    used: set[str] = set()
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= services.keys(), name
        assert set(service["networks"]) <= found["networks"].keys(), name
        mounted = {volume.split(":")[0] for volume in service.get("volumes", ())}
        own = {each for each in mounted if not each.startswith(".")} - {"secret"}
        assert own <= volumes, name
        assert not own & used, f"{name} shares a disk"
        used |= own
        assert all((DEPLOY / each).is_file() for each in mounted - own - {"secret"})
    assert used == volumes - {"secret"}
    assert {service["image"] for service in services.values() if "build" in service} == {
        f"waltz-ray:{PROJECT['version']}"
    }


def test_compose_is_a_cluster_as_its_file_says() -> None:
    services = compose()["services"]
    deployment = read(DEPLOY / "compose/cluster.yaml")
    disks = {}
    for service in services.values():
        for argument in service.get("command", ()):
            if argument.startswith("--resources="):
                (resource,) = offered(argument.removeprefix("--resources="))
                disks[resource] = service["volumes"][0]
    assert_disks(disks, deployment)
    assert all(disk.endswith(f":{deployment.cluster.directory}") for disk in disks.values())
    with_secret = {
        name for name, service in services.items() if "secret:/etc/waltz-secret" in service.get("volumes", ())
    }
    assert with_secret == {"head"} | {name for name in services if name.startswith("storage")}
    assert_reached_by_others(deployment)
    zookeepers = [name for name in services if name.startswith("zookeeper")]
    assert deployment.cluster.zookeeper == ",".join(f"{name}:2181" for name in zookeepers)
    assert [services[name]["environment"]["ZOO_MY_ID"] for name in zookeepers] == ["1", "2", "3"]
    servers = services[zookeepers[0]]["environment"]["ZOO_SERVERS"]
    assert servers.split() == [f"server.{n}=zookeeper-{n}:2888:3888;2181" for n in (1, 2, 3)]
    assert services["head"]["environment"]["RAY_REDIS_ADDRESS"] == "redis:6379"
    assert services["deploy"]["command"][-1] == services["head"]["volumes"][1].split(":")[1]


# ---- KubeRay


def test_kuberay_is_what_kuberay_takes() -> None:
    found = kubernetes()
    (cluster,), (job,) = found["RayCluster"], found["RayJob"]
    valid(cluster["spec"], RAY_CLUSTER)
    valid(job["spec"], RAY_JOB)
    assert job["spec"]["clusterSelector"]["ray.io/cluster"] == cluster["metadata"]["name"]
    (ray,) = (each for each in PROJECT["dependencies"] if each.startswith("ray["))
    assert ray == f"ray[default]=={cluster['spec']['rayVersion']}"


def test_kuberay_has_a_group_for_each_disk() -> None:
    found = kubernetes()
    (cluster,), (files,) = found["RayCluster"], found["ConfigMap"]
    deployment = parse(files["data"]["cluster.yaml"], "cluster.yaml")
    claims = {each["metadata"]["name"] for each in found["PersistentVolumeClaim"]}
    groups = cluster["spec"]["workerGroupSpecs"]
    disks, used = {}, set()
    for group in [cluster["spec"]["headGroupSpec"], *groups]:
        pod = group["template"]["spec"]
        by_name = {volume["name"]: volume for volume in pod["volumes"]}
        (container,) = pod["containers"]
        assert container["image"] == f"waltz-ray:{PROJECT['version']}"
        paths = {mount["mountPath"]: by_name[mount["name"]] for mount in container["volumeMounts"]}
        claim = paths[deployment.cluster.directory]["persistentVolumeClaim"]["claimName"]
        assert claim not in used, "two pods have one disk"
        used.add(claim)
        assert paths["/etc/waltz"]["configMap"]["name"] == files["metadata"]["name"]
        assert paths["/etc/waltz-secret"]["secret"]["defaultMode"] == 0o400
        if group in groups:
            (resource,) = offered(group["rayStartParams"]["resources"])
            disks[resource] = claim
            labels = group["template"]["metadata"]["labels"]
            (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert labels.items() >= term["labelSelector"]["matchLabels"].items(), "else two disks on one machine"
    assert used == claims
    assert_disks(disks, deployment)
    assert_reached_by_others(deployment)


# ---- the head, which may come and go (tests/operate/test_gcs.py)


def test_nothing_of_ours_is_placed_on_a_head() -> None:
    (head,) = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())["head_start_ray_commands"]
    labelled = "--labels=waltz-actors=none"
    assert labelled in head.split()
    assert [name for name, each in compose()["services"].items() if labelled in each.get("command", ())] == ["head"]
    (cluster,) = kubernetes()["RayCluster"]
    assert cluster["spec"]["headGroupSpec"]["labels"] == {"waltz-actors": "none"}
    for group in [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]:
        assert "labels" not in group["rayStartParams"], "KubeRay refuses it there"


def test_nodes_wait_for_a_head_that_is_away() -> None:
    name, seconds = "RAY_gcs_rpc_server_reconnect_timeout_s", "600"
    (start,) = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())["worker_start_ray_commands"]
    assert f"{name}={seconds}" in start.split()
    storage = [each for service, each in compose()["services"].items() if service.startswith("storage-")]
    assert [each["environment"][name] for each in storage] == [seconds] * len(REPLICAS)
    (cluster,) = kubernetes()["RayCluster"]
    for group in cluster["spec"]["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": name, "value": seconds} in container["env"]


def test_a_head_waits_for_its_redis() -> None:
    services = compose()["services"]
    assert services["head"]["depends_on"] == {"redis": {"condition": "service_healthy"}}
    assert "healthcheck" in services["redis"]
    assert "--appendonly" in services["redis"]["command"], "what it has forgotten no head knows any more"


# ---- the image


def test_the_image_has_what_it_copies_and_no_more() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    copied = {name for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for name in line.split()[:-1]}
    let_in = {
        line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert copied == let_in, "what is ignored cannot be copied"
    assert all((DEPLOY.parent / name).exists() for name in copied)
    assert re.findall(r"^USER (\w+)$", text, re.MULTILINE) == ["waltz"], "not root"
    instructions = {line.split()[0] for line in text.splitlines() if line and not line.startswith((" ", "#"))}
    assert instructions <= {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "CMD"}
