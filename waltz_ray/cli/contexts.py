"""Contexts: names for clusters, in a file of the user's; the chosen one stands where the environment is silent."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from waltz_ray.errors import InvalidInput

__all__ = ["Context", "Contexts", "apply", "changed", "config_file", "own", "read", "taken_out", "write"]

_OPTIONS = ("--dir", "--cluster", "--address", "--zookeeper")
_VARIABLES = {"dir": "WALTZ_DIR", "cluster": "WALTZ_CLUSTER", "zookeeper": "WALTZ_ZOOKEEPER", "address": "RAY_ADDRESS"}
_FILES = {
    "tls_authority": "WALTZ_TLS_AUTHORITY",
    "tls_certificate": "WALTZ_TLS_CERTIFICATE",
    "tls_key": "WALTZ_TLS_KEY",
    "token_file": "WALTZ_TOKEN_FILE",
    "zookeeper_auth_file": "WALTZ_ZOOKEEPER_AUTH_FILE",
}
_OURS = ("WALTZ_DIR", "WALTZ_CLUSTER", "WALTZ_ZOOKEEPER")
_RUNS_ANOTHER = ["kv", "lock"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Context:
    """Which cluster is meant, as the options of the same names say it; "" = not said. The last five: paths of files by
    which clients know its servers and are known (docs/security.md), never what is in them."""

    cluster: str = ""
    zookeeper: str = ""
    address: str = ""
    dir: str = ""
    tls_authority: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    token_file: str = ""
    zookeeper_auth_file: str = ""

    def check(self) -> None:
        """InvalidInput if no cluster can be found by it."""
        if sum(map(bool, (self.zookeeper, self.address, self.dir))) > 1:
            raise InvalidInput("a context has one of --dir, --address and --zookeeper: each finds the cluster alone")
        if self.zookeeper and not self.cluster:
            raise InvalidInput("a ZooKeeper may have several clusters; give the cluster's name, too: --cluster")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidInput("a certificate and its key go together: give both --tls-certificate and --tls-key")
        if not any((self.cluster, self.zookeeper, self.address, self.dir)):
            raise InvalidInput(
                "a context names a cluster: give --dir, --address, --zookeeper with --cluster, or a name"
            )


@dataclass
class Contexts:
    """What the file holds; ``current`` "": none is used."""

    current: str = ""
    named: dict[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """InvalidInput names those there are."""
        if name not in self.named:
            known = ", ".join(sorted(self.named)) or "none"
            raise InvalidInput(f"there is no context {name!r}; there is {known}; make one: waltz context create {name}")
        return self.named[name]

    def create(self, name: str, context: Context) -> None:
        """InvalidInput: there is one of that name, or the name or what it says is of no use."""
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"a context's name is 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', not {name!r}")
        if name in self.named:
            raise InvalidInput(f"there is a context {name!r} already; delete it first: waltz context delete {name}")
        context.check()
        self.named[name] = context

    def delete(self, name: str) -> None:
        """It is not the current one any more, either."""
        self.get(name)
        del self.named[name]
        self.current = "" if self.current == name else self.current


def config_file(environment: MutableMapping[str, str] = os.environ) -> Path:
    """$XDG_CONFIG_HOME/waltz/contexts.json; a relative XDG_CONFIG_HOME does not count, as its specification says."""
    home = environment.get("XDG_CONFIG_HOME", "")
    return Path(home if os.path.isabs(home) else Path.home() / ".config") / "waltz" / "contexts.json"


def read(path: Path) -> Contexts:
    """No file: none. InvalidInput if it is damaged, or cannot be read."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise InvalidInput(f"the contexts cannot be read: {path}: {error.strerror}") from error
    try:
        found = json.loads(text)
        named = {str(name): _context(values) for name, values in found["contexts"].items()}
        current = found["current"]
        if set(found) != {"current", "contexts"} or (current != "" and current not in named):
            raise ValueError(f"no context is named {current!r}, or there is something else")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"the file of the contexts is damaged: {path} ({error}); mend it, or remove it") from error
    return Contexts(current, named)


def _context(values: dict[str, str]) -> Context:
    if unknown := set(values) - {each.name for each in fields(Context)}:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    if not all(isinstance(value, str) for value in values.values()):
        raise ValueError("a value is no text")
    return Context(**values)


@contextmanager
def changed(path: Path) -> Iterator[Contexts]:
    """What the file holds, to be changed; it is written when the block ends without an error.

    Of several who change it at the same time each waits for the one before: nobody's change is lost. InvalidInput as
    of ``read`` and ``write``.
    """
    lock = path.with_suffix(".lock")  # of its own, never removed: the file itself is replaced
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput(f"the contexts cannot be written: {lock}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        contexts = read(path)
        yield contexts
        write(path, contexts)
    finally:
        os.close(handle)


def write(path: Path, contexts: Contexts) -> None:
    """Whole or not at all, for its owner only. Where a link leads, as people keep such files elsewhere."""
    path = Path(os.path.realpath(path))
    named = {name: {k: v for k, v in asdict(each).items() if v} for name, each in sorted(contexts.named.items())}
    text = json.dumps({"current": contexts.current, "contexts": named}, indent=2) + "\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")  # mode 0600
        try:
            with os.fdopen(number, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(number)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InvalidInput(f"the contexts cannot be written: {path}: {error.strerror}") from error


def own(arguments: Sequence[str]) -> Sequence[str]:
    """Those of the arguments that are ours: what is behind ``--`` is not, nor the command of ``waltz kv lock``, which
    comes behind the lock's name."""
    words: list[str] = []
    is_value = False
    for number, argument in enumerate(arguments):
        if is_value:
            is_value = False
        elif argument == "--":
            return arguments[:number]
        elif argument.startswith("-"):
            # Before a command there is no other option with a value, and waltz kv lock has no other without.
            has_value = argument == "--context" or (words == _RUNS_ANOTHER and argument != "--help")
            is_value = has_value and "=" not in argument
        else:
            words.append(argument)
            if words[:-1] == _RUNS_ANOTHER:
                return arguments[: number + 1]
    return arguments


def taken_out(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of ``--context``, wherever it stands before a ``--`` or another command, and the other arguments."""
    name, rest, left = None, [], [*own(arguments)]
    others = arguments[len(left) :]
    while left:
        argument = left.pop(0)
        if argument == "--context":
            if not left:
                raise InvalidInput("--context needs the name of a context; see waltz context list")
            name = left.pop(0)
        elif argument.startswith("--context="):
            name = argument.partition("=")[2]
        else:
            rest.append(argument)
    return name, [*rest, *others]


def apply(name: str | None, arguments: Sequence[str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Put the context ``name``, or else the current one, into the environment, where a command looks.

    A context counts as a whole or not at all. One that was named takes the place of the variables, and contradicts
    options; the current one gives way to both.
    """
    options = [each for each in own(arguments) if each.split("=")[0] in _OPTIONS]
    if name is None:
        if options or any(environment.get(variable) for variable in _OURS):
            return
        contexts = read(config_file(environment))
        if not contexts.current:
            return
        name = contexts.current
    elif options:
        raise InvalidInput(f"--context {name} says which cluster is meant, and so does {options[0]}; leave one out")
    else:
        contexts = read(config_file(environment))
    context = contexts.get(name)
    variables = {**_VARIABLES, **_FILES}
    for variable in variables.values():
        environment.pop(variable, None)
    for each, variable in variables.items():
        if value := getattr(context, each):
            environment[variable] = value
