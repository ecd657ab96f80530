"""Contexts: the file, what counts before what, and what is said of a file that is damaged."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from waltz_ray.cli import contexts, main
from waltz_ray.cli.contexts import Context, Contexts
from waltz_ray.errors import InvalidInput

PROD, LAB = Context("shop", "zk1:2181,zk2:2181"), Context(dir="/srv/lab")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "waltz" / "contexts.json"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(list(arguments))
    return int(str(leaving.value.code))


FILES = ("tls_authority", "tls_certificate", "tls_key", "token_file", "zookeeper_auth_file")


def test_made_used_shown_and_deleted(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("context", "create", "prod", "--cluster", "shop", "--zookeeper", "zk1:2181,zk2:2181") == 0
    assert run("context", "show") == 1  # none is in use
    assert run("context", "use", "prod") == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert contexts.read(file) == Contexts("prod", {"prod": PROD})
    capsys.readouterr()
    assert run("context", "list", "--json") == 0
    shown = {"name": "prod", "current": True, "cluster": "shop", "zookeeper": "zk1:2181,zk2:2181"}
    assert json.loads(capsys.readouterr().out) == [shown | dict.fromkeys(("address", "dir", *FILES), "")]
    assert run("context", "show") == 0
    assert capsys.readouterr().out.split() == ["context", "prod", "cluster", "shop", "zookeeper", PROD.zookeeper]
    assert run("context", "delete", "prod") == 0
    assert contexts.read(file) == Contexts()
    assert sorted(each.name for each in file.parent.iterdir()) == ["contexts.json", "contexts.lock"]


def test_the_file_for_zookeeper_is_given_as_to_up(file: Path, tmp_path: Path) -> None:
    assert run("context", "create", "lab", "--dir", "/srv/lab", "--zookeeper-auth", str(tmp_path / "a")) == 0
    assert contexts.read(file).named["lab"].zookeeper_auth_file == str(tmp_path / "a")


def test_of_two_changes_at_the_same_time_none_is_lost(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins when the first has read, and is not written yet."""
    others: list[subprocess.Popen[bytes]] = []
    waits, read = "waits for the lock", contexts.read

    def read_while_another_begins(path: Path) -> Contexts:
        found = read(path)
        if not others:
            code = "import sys; from waltz_ray.cli import main; main(['context', 'create', 'lab', '--dir', '/srv/lab'])"
            others.append(subprocess.Popen([sys.executable, "-c", code]))
            assert waited(others[0]) == waits  # or it has ended, and what it wrote is about to be replaced
        return found

    def waited(process: subprocess.Popen[bytes]) -> str:
        while process.poll() is None:
            if f" {process.pid} " in Path("/proc/locks").read_text():
                return waits
        return "has ended"

    monkeypatch.setattr(contexts, "read", read_while_another_begins)
    monkeypatch.setattr("waltz_ray.cli.context.read", read_while_another_begins, raising=False)
    assert run("context", "create", "prod", "--cluster", "shop", "--zookeeper", "zk1:2181,zk2:2181") == 0
    assert others[0].wait(60) == 0
    monkeypatch.undo()
    assert read(file) == Contexts("", {"lab": LAB, "prod": PROD})


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["create", "a b", "--cluster", "x"], "name is 1 to 64"),
        (["create", "a"], "names a cluster"),
        (["create", "a", "--zookeeper", "z:1"], "give the cluster's name"),
        (["create", "a", "--dir", "d", "--address", "h:1"], "has one of"),
        (["create", "prod", "--dir", "d"], "already"),
        (["use", "none"], "no context 'none'; there is prod"),
        (["delete", "none"], "no context 'none'"),
    ],
)
def test_what_cannot_be_leaves_the_file(
    file: Path, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts.write(file, Contexts("prod", {"prod": PROD}))
    assert run("context", *arguments) == 1
    assert why in capsys.readouterr().err
    assert contexts.read(file) == Contexts("prod", {"prod": PROD})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "null", "[" * 100_000, '{"current": "x", "contexts": {}}', '{"current": "", "contexts": []}']
    + [json.dumps({"current": "", "contexts": {"a": each}}) for each in (1, {"dir": 1}, {"dri": "x"})]
    + ["\xff"],
)
def test_a_damaged_file_is_one_line_and_stays(file: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file.parent.mkdir()
    file.write_bytes(text.encode("latin-1"))
    assert run("space", "list") == 1
    told = capsys.readouterr().err
    assert told.startswith("waltz: the file of the contexts is damaged: ")
    assert told.count("\n") == 1
    assert str(file) in told
    assert file.read_bytes() == text.encode("latin-1")
    assert run("status", "--help") == 0


def applied(name: str | None, arguments: list[str], environment: dict[str, str], file: Path) -> dict[str, str]:
    environment = {"XDG_CONFIG_HOME": str(file.parent.parent)} | environment
    contexts.apply(name, arguments, environment)
    del environment["XDG_CONFIG_HOME"]
    return environment


def test_options_before_variables_before_the_context_before_ray_address(file: Path) -> None:
    contexts.write(file, Contexts("prod", {"prod": PROD, "lab": LAB}))
    prod = {"WALTZ_CLUSTER": "shop", "WALTZ_ZOOKEEPER": PROD.zookeeper}
    assert applied(None, ["status"], {}, file) == prod
    assert applied(None, ["status"], {"RAY_ADDRESS": "h:1"}, file) == prod
    assert applied("lab", ["status"], {"WALTZ_ZOOKEEPER": "z:1"}, file) == {"WALTZ_DIR": "/srv/lab"}
    for variable in ("WALTZ_DIR", "WALTZ_CLUSTER", "WALTZ_ZOOKEEPER"):
        assert applied(None, ["status"], {variable: "x"}, file) == {variable: "x"}
    for option in ("--dir=x", "--cluster", "--address", "--zookeeper"):
        assert applied(None, ["status", option, "x"], {}, file) == {}
        with pytest.raises(InvalidInput, match="leave one out"):
            applied("lab", ["status", option, "x"], {}, file)
    with pytest.raises(InvalidInput, match="no context 'x'; there is lab, prod"):
        applied("x", ["status"], {}, file)


def test_the_option_is_taken_wherever_it_stands() -> None:
    assert contexts.taken_out(["--context", "a", "status", "-w"]) == ("a", ["status", "-w"])
    assert contexts.taken_out(["status", "--context=a"]) == ("a", ["status"])
    assert contexts.taken_out(["kv", "get", "--", "--context"]) == (None, ["kv", "get", "--", "--context"])
    with pytest.raises(InvalidInput, match="needs the name"):
        contexts.taken_out(["status", "--context"])


@pytest.mark.parametrize("between", [[], ["--"]], ids=["behind the name", "behind --"])
@pytest.mark.parametrize("options", [[], ["--lease", "30"], ["--wait=1", "--space", "locks"]], ids=" ".join)
def test_options_of_a_command_that_runs_under_a_lock_are_its_own(
    between: list[str], options: list[str], file: Path
) -> None:
    """The lock was one of another cluster, and the command ran without its option."""
    contexts.write(file, Contexts("prod", {"prod": PROD, "lab": LAB}))
    given = [
        "kv",
        "lock",
        *options,
        "deploy",
        *between,
        "kubectl",
        "--context",
        "lab",
        "--cluster",
        "x",
        "--dir=y",
        "--help",
    ]
    assert "--help" not in contexts.own(given)
    assert contexts.taken_out(given) == (None, given)
    assert contexts.taken_out(["--context", "lab", *given]) == ("lab", given)
    assert contexts.taken_out([*given[:2], "--context=lab", *given[2:]]) == ("lab", given)
    prod = {"WALTZ_CLUSTER": "shop", "WALTZ_ZOOKEEPER": PROD.zookeeper}
    assert applied(None, given, {}, file) == prod
    assert applied("lab", given, {}, file) == {"WALTZ_DIR": "/srv/lab"}
    with pytest.raises(InvalidInput, match="leave one out"):
        applied("lab", ["kv", "lock", "--cluster", "x", "deploy", *between, "kubectl"], {}, file)


def test_a_relative_configuration_directory_does_not_count() -> None:
    assert contexts.config_file({"XDG_CONFIG_HOME": "here"}) == Path.home() / ".config/waltz/contexts.json"
    assert contexts.config_file({"XDG_CONFIG_HOME": "/etc/x"}) == Path("/etc/x/waltz/contexts.json")


def test_a_link_to_the_file_stays_one(file: Path, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles" / "waltz.json"
    kept.parent.mkdir()
    file.parent.mkdir(parents=True)
    file.symlink_to(kept)
    for name in ("a", "b"):
        assert run("context", "create", name, "--dir", "/c") == 0
        assert file.is_symlink()
    assert {*contexts.read(kept).named} == {"a", "b"}


def test_what_cannot_be_written_is_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.parent.write_text("no directory")
    assert run("context", "create", "a", "--dir", "d") == 1
    assert capsys.readouterr().err.count("\n") == 1
