"""What is fuzzed: something that takes bytes, and may only refuse them in a way that its caller expects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["Found", "FuzzTarget"]


class Found(AssertionError):
    """An input that is not taken and not refused as it should be."""


@dataclass(frozen=True)
class FuzzTarget:
    """``read`` takes ``data``; ``refuses`` is how it says that it does not. ``samples``: good ones."""

    name: str
    read: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]
    samples: Callable[[], Iterable[bytes]]

    def feed(self, data: bytes) -> bool:
        """Whether it was taken. Found, naming the bytes, if it is neither taken nor refused."""
        try:
            self.read(data)
        except self.refuses:
            return False
        except MemoryError as error:
            raise Found(f"{self.name} runs out of memory for {data.hex()}") from error
        except Exception as error:
            raise Found(f"{self.name}: {type(error).__name__} ({error}) for {data.hex()}") from error
        return True
