"""``make fuzz SECONDS=600``: every target for its part of the time; 1 if something was found, with the bytes kept.

With atheris (extra ``fuzz``) mutations are chosen by what they reach, each target in a process of its own; without it
they are chosen by chance. What is found lies in build/fuzz/found, what is interesting in build/fuzz/NAME; ``--keep``
takes the smallest of that into the corpus, which the test suite reads.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build" / "fuzz"
CORPUS = Path(__file__).parent / "corpus"
MOST_KEPT, MOST_BYTES = 12, 2048
_LIMITS = ("-rss_limit_mb=1024", "-timeout=10", "-max_len=8192", "-verbosity=0", "-close_fd_mask=1")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="in all, shared by the targets")
    parser.add_argument("--target", action="append", help="one of them; may be repeated")
    parser.add_argument("--seed", type=int, help="of what is left to chance; another one each time without it")
    parser.add_argument("--keep", action="store_true", help="into the corpus with what is interesting and small")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    given, rest = parser.parse_known_args()
    if given.one:
        _under_atheris(given.one, rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    from tests.fuzz.targets import TARGETS

    names = given.target or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}, only {', '.join(TARGETS)}")
    guided = importlib.util.find_spec("atheris") is not None
    how = "guided by coverage (atheris)" if guided else "by chance: atheris is not installed"
    print(f"{len(names)} targets, {how}")
    (BUILD / "found").mkdir(parents=True, exist_ok=True)
    each_s, seed = given.seconds / len(names), given.seed if given.seed is not None else time.time_ns() % 2**31
    found = [name for name in names if not (_guided if guided else _by_chance)(name, each_s, seed)]
    if given.keep:
        for name in names:
            _keep(name)
    told = f"found something in: {', '.join(found)}; see {BUILD / 'found'}" if found else "nothing found"
    print(f"seed {seed}: {told}")
    return 1 if found else 0


def _by_chance(name: str, seconds: float, seed: int) -> bool:
    from tests.fuzz.mutation import mutations
    from tests.fuzz.target import Found
    from tests.fuzz.targets import TARGETS, kept

    target, end, count = TARGETS[name], time.monotonic() + seconds, 0
    for data in mutations([*target.samples(), *kept(name)], seed):
        count += 1
        try:
            target.feed(data)
        except Found as error:
            place = BUILD / "found" / f"{name}-{hashlib.sha1(data).hexdigest()}"
            place.write_bytes(data)
            print(f"{name}: {error.__cause__!r}; the bytes are in {place}")
            return False
        if time.monotonic() > end:
            break
    print(f"{name}: {count:,} inputs")
    return True


def _guided(name: str, seconds: float, seed: int) -> bool:
    samples, work = BUILD / "samples" / name, BUILD / name
    for folder in (samples, work, CORPUS / name):
        folder.mkdir(parents=True, exist_ok=True)
    from tests.fuzz.targets import TARGETS

    for data in TARGETS[name].samples():
        (samples / hashlib.sha1(data).hexdigest()).write_bytes(data)
    options = [f"-max_total_time={max(1, round(seconds))}", f"-seed={seed or 1}", *_LIMITS]
    options.append(f"-artifact_prefix={BUILD / 'found' / name}-")
    command = [sys.executable, "-m", "tests.fuzz", "--one", name, *options, *map(str, (work, samples, CORPUS / name))]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    print(f"{name}: {len(list(work.iterdir()))} inputs that reach something new")
    if done.returncode:
        print("".join(f"  {line[:300]}\n" for line in (done.stdout + done.stderr).splitlines()[-14:]), end="")
    return done.returncode == 0


def _under_atheris(name: str, options: list[str]) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["waltz_ray"], enable_loader_override=False):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    atheris.Setup([sys.argv[0], *options], lambda data: (target.feed(data), None)[1])
    atheris.Fuzz()


def _keep(name: str) -> None:
    """The smallest of what a run found interesting, as long as there are not many."""
    place = CORPUS / name
    room = MOST_KEPT - sum(1 for _ in place.glob("*"))
    found = sorted((BUILD / name).glob("*"), key=lambda path: path.stat().st_size)
    # Evenly from small to large: the smallest alone are the refused ones.
    small = [path for path in found if path.stat().st_size <= MOST_BYTES]
    for path in small[:: max(1, len(small) // max(1, room))][: max(0, room)]:
        data = path.read_bytes()
        (place / hashlib.sha1(data).hexdigest()[:16]).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
