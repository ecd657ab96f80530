"""The table of layers in ARCHITECTURE.md is what the code keeps: who imports whom, and which libraries.

A new package is a new row there; nothing has to be changed here. What the columns mean is said above the table.
Imports inside functions and under TYPE_CHECKING count like any other, with one exception: within ``tests/`` those
under TYPE_CHECKING may close a circle (a simulated world and its parts name each other). That every import of
``waltz_ray.x`` runs ``waltz_ray/__init__.py``, too, is left out: the package's front door imports what it shows.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"

# Where the top packages live.
HOMES = {
    "waltz_ray": ROOT / "waltz_ray",
    "waltz_spark": ROOT / "spark/waltz_spark",
    "waltz_spark4": ROOT / "spark/waltz_spark4",
    "waltz_bench": ROOT / "benchmarks/waltz_bench",
    "tests": ROOT / "tests",
}
TREES = ("waltz_ray", "spark", "benchmarks", "deploy", "examples")  # each Python file in them belongs to a row
STANDARD_LIBRARY = sys.stdlib_module_names | {"tomllib"}  # which Python 3.10 does not have
OUTSIDE = {"os", "socket", "time", "random", "threading", "asyncio", "pathlib", "subprocess", "shutil", "select", "ssl"}

# These lists only get shorter; an entry that is no longer needed fails, too.
FOLDER_CIRCLES: set[frozenset[str]] = set()
FILE_CIRCLES = {  # imports for type checking only that close a circle
    ("waltz_ray.client.requests", "waltz_ray.client.contexts"),
    ("waltz_ray.actors.client_connection", "waltz_ray.actors.server"),
    ("waltz_ray.actors.client_requests", "waltz_ray.actors.client_connection"),
    ("waltz_ray.actors.client_requests", "waltz_ray.actors.server"),
}


class Import(NamedTuple):
    """``name`` (None: the module itself) of ``module``, as written in ``line``."""

    module: str
    name: str | None
    line: int
    for_types: bool = False


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    package: str
    of_ours: frozenset[str]
    libraries: Mapping[str, str]  # library -> the one file that may import it, "" = all
    pure: bool
    public: bool  # only what the packages named export


@cache
def rows() -> dict[str, Row]:
    return {row.package: row for row in table(PAGE.read_text())}


def table(page: str) -> Iterator[Row]:
    """The rows of the table under "Layers"."""
    lines = page.split("\n## Layers\n")[1].split("\n## ")[0].splitlines()
    for line in (line for line in lines if line.startswith("| `")):
        packages, _, of_ours, libraries = (cell.strip() for cell in line.strip("| ").split(" | "))
        named = re.findall(r"([a-z0-9_]+)(?: \(`([a-z_]+\.py)`\))?", libraries.removeprefix("pure"))
        for package in re.findall(r"`([^`]+)`", packages):
            yield Row(
                package,
                frozenset(re.findall(r"`([^`]+)`", of_ours)),
                dict(named),
                libraries.startswith("pure"),
                of_ours.startswith("public"),
            )


def module_of(path: Path) -> str:
    for name, home in HOMES.items():
        if path.is_relative_to(home):
            parts = path.relative_to(home).with_suffix("").parts
            return ".".join([name, *parts]).removesuffix(".__init__")
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def modules() -> dict[str, Path]:
    """All modules of ours."""
    found = [path for tree in (*TREES, "tests") for path in sorted((ROOT / tree).rglob("*.py"))]
    return {module_of(path): path for path in found}


def package_of(path: Path) -> str:
    """The row that a file belongs to: its own, that of the innermost folder with one, or ``waltz_ray/*.py``."""
    inside = path.relative_to(ROOT).as_posix().removeprefix("waltz_ray/")
    if inside in rows():
        return inside
    if path.parent == ROOT / "waltz_ray":
        return "waltz_ray/*.py"
    folders = [package for package in rows() if package.endswith("/") and inside.startswith(package)]
    return max(folders, key=len, default="")


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    return tuple(imports_in(path.read_text(), str(path)))


def imports_in(source: str, name: str = "") -> Iterator[Import]:
    tree = ast.parse(source)
    typing = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno, id(node) in typing)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            for alias in node.names:
                module, found = f"{node.module}.{alias.name}", None
                if module not in modules():
                    module, found = str(node.module), alias.name
                yield Import(module, found, node.lineno, id(node) in typing)


def exports_of(path: Path) -> set[str]:
    """The names in a module's ``__all__``."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def problems(row: Row, imports: tuple[Import, ...], file: str = "a_module.py") -> list[str]:
    """What of these imports the row does not allow."""
    return [
        f"{file}, line {each.line}: {row.package} imports {each.module}: {why}"
        for each in imports
        if (why := problem(row, each, file)) is not None
    ]


def problem(row: Row, wanted: Import, file: str) -> str | None:
    top = wanted.module.split(".")[0]
    if top in HOMES:
        path = modules().get(wanted.module)
        return "there is no such module" if path is None else own_problem(row, wanted, path)
    if top in STANDARD_LIBRARY:
        return f"it is pure, and {top} is not" if row.pure and top in OUTSIDE else None
    only = row.libraries.get(top)
    if only is None:
        return f"the table does not name {top}"
    return None if only in ("", file) else f"the table has {top} in {only} only"


def own_problem(row: Row, wanted: Import, path: Path) -> str | None:
    package = package_of(path)
    if package == "compat.py" and not row.pure:
        return None
    if package not in (row.package, "errors.py", *row.of_ours):
        return f"the table does not name {package or path}"
    if row.public and package != row.package:
        whole = path.name == "__init__.py" or path.parent == ROOT / "waltz_ray"
        if not whole:
            return "a module inside of a package is not its public surface"
        if wanted.name is not None and wanted.name not in exports_of(path):
            return f"{wanted.name} is not exported"
    return None


FILES = [path for path in modules().values() if not path.is_relative_to(ROOT / "tests")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_what_the_table_allows(path: Path) -> None:
    package = package_of(path)
    assert package in rows(), f"{path.relative_to(ROOT)} is in no package of the table"
    assert problems(rows()[package], imports_of(path), path.name) == []


def test_every_row_names_what_there_is() -> None:
    used = {package_of(path) for path in FILES}
    named = {package for row in rows().values() for package in row.of_ours}
    assert len(rows()) > 15
    assert rows().keys() - used == set(), "rows of packages that are not there"
    assert named - rows().keys() == set(), "imports of packages that have no row"


def test_no_row_allows_more_than_is_used() -> None:
    """Else the table would tell of arrows that are not there. For a new arrow the table is changed first."""
    used: dict[str, set[str]] = {package: {package} for package in rows()}
    libraries: dict[str, set[str]] = {package: set() for package in rows()}
    for path in FILES:
        for each in imports_of(path):
            if each.module in modules():
                used[package_of(path)].add(package_of(modules()[each.module]))
            else:
                libraries[package_of(path)].add(each.module.split(".")[0])
    unused = {row.package: found for row in rows().values() if (found := set(row.of_ours) - used[row.package])}
    assert unused == {}
    idle = {row.package: found for row in rows().values() if (found := set(row.libraries) - libraries[row.package])}
    assert idle == {}


Graph = dict[str, set[str]]


def circles(graph: Graph) -> set[frozenset[str]]:
    """The sets of nodes that all reach each other."""
    while ends := {node for node, following in graph.items() if not following & graph.keys()}:
        graph = {node: following for node, following in graph.items() if node not in ends}
    reach = {node: reachable(graph, node) for node in graph}
    return {
        frozenset({node, *(other for other in found if node in reach.get(other, ()))})
        for node, found in reach.items()
        if node in found
    }


def reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for following in graph.get(ahead.pop(), ()):
            if following not in found:
                found.add(following)
                ahead.append(following)
    return found


def file_graph() -> Graph:
    graph: Graph = {}
    for module, path in modules().items():
        in_tests = path.is_relative_to(ROOT / "tests")
        graph[module] = {
            each.module
            for each in imports_of(path)
            if each.module in modules() and each.module != module and not (in_tests and each.for_types)
        }
    return graph


def test_no_circle_between_packages() -> None:
    graph: Graph = {package: set() for package in rows()}
    for path in FILES:
        targets = {package_of(modules()[each.module]) for each in imports_of(path) if each.module in modules()}
        graph[package_of(path)] |= targets - {package_of(path)}
    assert circles(graph) == FOLDER_CIRCLES


def test_no_circle_between_files() -> None:
    graph = file_graph()
    assert set() == {(a, b) for a, b in FILE_CIRCLES if b not in graph.get(a, ())}, "no longer there: take them out"
    for importer, imported in FILE_CIRCLES:
        assert importer in reachable(graph, imported), f"{importer} -> {imported} closes no circle: take it out"
    for importer, imported in FILE_CIRCLES:
        graph[importer].discard(imported)
    assert circles(graph) == set()


def test_only_types_are_excused_from_circles() -> None:
    for importer, imported in FILE_CIRCLES:
        found = [each for each in imports_of(modules()[importer]) if each.module == imported]
        assert found
        assert all(each.for_types for each in found)


def test_no_class_name_twice() -> None:
    """Of what we ship: whoever reads a name knows which class it is."""
    named: dict[str, set[Path]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, set()).add(path.relative_to(ROOT))
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}


def test_one_module_is_the_gate_to_the_disk() -> None:
    gate = {"os", "fcntl", "io", "shutil", "pathlib", "tempfile"}
    for path in sorted((ROOT / "waltz_ray/storage").glob("*.py")):
        if path.name != "disk.py":
            used = {each.module.split(".")[0] for each in imports_of(path)} & gate
            assert used == set(), f"{path.name} goes past disk.py: {used}"


# ---- the checker has teeth --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("protocol/", "import socket"),
        ("wire/", "from waltz_ray import compat"),
        ("protocol/", "from waltz_ray.storage.store import ReplicaStore"),
        ("protocol/", "def f():\n    import crcmod"),
        ("wire/", "import ray"),
        ("storage/", "from waltz_ray.client import WaltzClient"),
        ("storage/", "import kazoo.client"),
        ("storage/", "import tests.simulation"),
        ("client/", "from ray.actor import ActorHandle"),
        ("client/", "import pyarrow"),
        ("client/readers/", "import ray"),
        ("client/ray/", "import waltz_spark"),
        ("client/ray/", "import pyspark"),
        ("coordination/", "import pyspark"),
        ("actors/", "from waltz_ray import bring_up"),
        ("spark/waltz_spark4/", "from waltz_spark import read_feed"),
        ("spark/waltz_spark/streams/", "import ray"),
        ("demo/", "from waltz_ray.storage.verify import verify_directory"),
        ("demo/", "from waltz_ray.client.client import WaltzClient"),
        ("demo/", "from waltz_ray import ClusterStore"),
        ("demo/", "from waltz_spark.session import use_java"),
        ("examples/", "import waltz_ray.protocol.ids"),
        ("benchmarks/waltz_bench/", "from tests.client.fake_server import FakeServer"),
    ],
)
def test_what_a_row_forbids(package: str, source: str) -> None:
    assert len(problems(rows()[package], tuple(imports_in(source)))) == 1


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("protocol/", "import struct, numpy"),
        ("storage/", "from waltz_ray.errors import Corruption"),
        ("net/", "from waltz_ray import compat"),
        ("demo/", "from waltz_ray import Callbacks, connect, bring_up"),
        ("demo/", "from waltz_ray.errors import InvalidInput"),
    ],
)
def test_what_a_row_allows(package: str, source: str) -> None:
    assert problems(rows()[package], tuple(imports_in(source))) == []


def test_a_library_of_one_file() -> None:
    (wanted,) = imports_in("import ray")
    assert problem(rows()["finding/"], wanted, "ray_lookup.py") is None
    assert problem(rows()["finding/"], wanted, "find.py") == "the table has ray in ray_lookup.py only"


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == set()
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {frozenset("bc")}
    assert circles({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}) == {frozenset("ab"), frozenset("cd")}


def test_the_table_is_read_as_it_is_written() -> None:
    page = "\n## Layers\n\n| package | what | of ours | libraries |\n|---|---|---|---|\n"
    page += "| `a/` | it | `b/`, `c.py` | pure, numpy, ray (`one.py`) |\n"
    page += "| `b/`, `c.py` | them | public: `a/` | - |\n\n## X\n"
    a, b, c = table(page)
    assert a == Row("a/", frozenset({"b/", "c.py"}), {"numpy": "", "ray": "one.py"}, pure=True, public=False)
    assert b == Row("b/", frozenset({"a/"}), {}, pure=False, public=True)
    assert c == replace(b, package="c.py")
