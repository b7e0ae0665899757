"""What is started when a `with` block begins and stopped, with all it started, when the block or the start ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Self


class Started(ABC):
    def __init__(self) -> None:
        self._stack = ExitStack()
        """What is to be undone, in reverse order."""

    @abstractmethod
    def _start(self) -> None:
        """Push on `_stack` what undoes each step."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
