"""The object store in a task of `read_latest`, under the pin of the whole read.

A missing object means one of two things. If the pin still holds, nobody may have deleted it: it is lost, and the scan
decides about that. If the pin ran out, the object was probably merged and deleted. Then the read cannot go on, and asks
for no new plan: dedupe may have dropped records that were the latest ones at this read's end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future

from spark_jobs.scan.blocking import BlockingStore


class PinnedStore(BlockingStore):
    """The process's store, which asks about each missing object."""

    def __init__(self, shared: BlockingStore, gone: Callable[[str], None]) -> None:  # pyright: ignore[reportMissingSuperCall]
        """`gone` is called in the reader's thread with the key of a missing object. It returns if the object is lost,
        or raises.
        """
        self._shared, self._gone = shared, gone

    def get_range(self, key: str, start: int, length: int) -> Future[bytes | None]:
        answer = _Answer(key, self._gone)

        def told(found: Future[bytes | None]) -> None:
            if not answer.set_running_or_notify_cancel():
                return  # nobody is waiting any more
            error = found.exception() if not found.cancelled() else CancelledError()
            if error is None:
                answer.set_result(found.result())
            else:
                answer.set_exception(error)

        self._shared.get_range(key, start, length).add_done_callback(told)
        return answer

    def close(self, *, patience_s: float | None = None) -> None:
        """Do nothing: the store belongs to the process."""


class _Answer(Future[bytes | None]):
    def __init__(self, key: str, gone: Callable[[str], None]) -> None:
        super().__init__()
        self._key, self._gone = key, gone

    def result(self, timeout: float | None = None) -> bytes | None:
        found = super().result(timeout)
        if found is None:
            self._gone(self._key)
        return found
