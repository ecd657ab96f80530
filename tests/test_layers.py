"""The layers of DESIGN 3: who may import whom, and which libraries each layer may use."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "waltz_ray"

# Layer -> layers it may import beside itself. Modules directly under waltz_ray/ are the composition and may import all.
MAY_IMPORT = {
    "protocol": {"wire", "errors", "config"},
    "wire": {"protocol", "errors"},
    "storage": {"protocol", "wire", "errors", "config"},
    "coordination": {"protocol", "wire", "errors", "config"},
    "net": {"wire", "errors"},
    "client": {"protocol", "wire", "net", "errors", "config"},
    "actors": {"protocol", "wire", "net", "storage", "coordination", "client", "errors", "config"},
    "errors": set(),
    "config": {"errors"},
}
PURE = {"protocol", "wire"}
IMPURE_MODULES = {"os", "socket", "time", "random", "threading", "asyncio", "pathlib", "subprocess", "shutil", "select"}
RAY_IN_CLIENT = {"actor_transport.py", "ray_lookup.py"}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


MODULES = sorted(PACKAGE.rglob("*.py"))


def problems_of(path: Path, layer: str, names: list[str]) -> list[str]:
    found = []
    for name in names:
        top = name.split(".")[0]
        if top == "waltz_ray" and layer in MAY_IMPORT and name != "waltz_ray":
            target = name.split(".")[1]
            if target != layer and target not in MAY_IMPORT[layer]:
                found.append(f"{layer} imports {name}")
        elif layer in PURE and top in IMPURE_MODULES:
            found.append(f"{layer} is pure and imports {top}")
        elif layer in PURE and top not in sys.stdlib_module_names and top not in ("numpy", "isal", "waltz_ray"):
            found.append(f"{layer} may use numpy and isal only, not {top}")
        elif top == "ray" and layer in MAY_IMPORT and layer != "actors" and path.name not in RAY_IN_CLIENT:
            found.append(f"{layer} imports ray")
        elif top == "kazoo" and layer != "coordination":
            found.append(f"{layer} imports kazoo")
        elif top in ("raydp", "waltz_spark") and layer in MAY_IMPORT:
            found.append(f"{layer} imports {top}")
        elif top == "pyspark" and layer in MAY_IMPORT and path.name != "embedded.py":
            found.append(f"{layer} imports pyspark")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    assert problems_of(path, layer_of(path), list(imports_of(path))) == []


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("protocol", "socket"),
        ("protocol", "waltz_ray.storage.store"),
        ("wire", "ray"),
        ("storage", "waltz_ray.client"),
        ("storage", "kazoo"),
        ("client", "ray"),
        ("coordination", "pyspark"),
    ],
)
def test_the_rules_have_teeth(layer: str, name: str) -> None:
    assert problems_of(PACKAGE / layer / "some_module.py", layer, [name]) != []


def test_one_module_is_the_gate_to_the_disk() -> None:
    gate = {"os", "fcntl", "io", "shutil", "pathlib", "tempfile"}
    for path in sorted((PACKAGE / "storage").glob("*.py")):
        if path.name != "disk.py":
            used = {name.split(".")[0] for name in imports_of(path)} & gate
            assert used == set(), f"{path.name} goes past disk.py: {used}"
