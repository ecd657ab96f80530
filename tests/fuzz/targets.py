"""All that is fuzzed, by name, and what has been kept of earlier runs."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.of_documents import DOCUMENTS
from tests.fuzz.of_stored import STORED
from tests.fuzz.of_wires import WIRES
from tests.fuzz.target import FuzzTarget

__all__ = ["CORPUS", "TARGETS", "kept"]

CORPUS = Path(__file__).parent / "corpus"
"""A folder for each target: inputs that reach more of it than others, and those that were found to be wrong once."""

TARGETS: dict[str, FuzzTarget] = {target.name: target for target in (*WIRES, *DOCUMENTS, *STORED)}


def kept(name: str) -> list[bytes]:
    """The corpus of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
