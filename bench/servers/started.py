"""A base for servers: started when a `with` block begins, and stopped with everything they started when the block or
the start ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Self


class Started(ABC):
    def __init__(self) -> None:
        self._stack = ExitStack()
        """The steps to undo, in reverse order."""

    @abstractmethod
    def _start(self) -> None:
        """Start; push the undoing of each step on `_stack`."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
