"""Requested records that cannot be had: an error, or a warning and a note of what was left out."""

from __future__ import annotations

from collections.abc import Collection

from runtime.logging import get_logger
from spark_jobs.scan.contract import DataLossError, Piece

_log = get_logger(__name__)


class Losses:
    """The losses of one slice. `known`: ranges that an earlier pass over it left out. A later pass must meet the same
    ones, because it counts records.
    """

    def __init__(
        self, topic: str, partition: int, *, fails: bool, known: Collection[tuple[int, int]] | None = None
    ) -> None:
        self.ranges: set[tuple[int, int]] = set()
        """(first, last) offset, inclusive, of each range that was left out."""
        self._where = f"topic {topic!r}, partition {partition}"
        self._fails = fails
        self._known = known

    def lost(self, first: int, last: int, reason: str, piece: Piece | None = None, *, remedy: str = "") -> None:
        """Records from `first` to `last` cannot be read: raise DataLossError, or leave them out."""
        offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
        file = "" if piece is None else f", file {piece.key!r}"
        if self._fails or (self._known is not None and (first, last) not in self._known):
            again = "" if self._known is None or self._fails else "; an earlier pass could read them"
            raise DataLossError(
                f"{self._where}, {offsets}{file}: {reason}{again}",
                remedy=remedy or "`siltstone fsck` shows what is damaged; fail_on_data_loss=false leaves it out",
            )
        # Later passes meet the same losses; one warning is enough.
        if self._known is None:
            _log.warning("records are left out", where=self._where, offsets=offsets, file=file[7:], reason=reason)
        self.ranges.add((first, last))

    def check_complete(self) -> None:
        """Check a later pass at its end. Raises DataLossError when it met fewer losses than the first."""
        if self._known is not None and self.ranges != set(self._known):
            raise DataLossError(
                f"{self._where}: records that an earlier pass could not read can be read now, so its count is wrong",
                remedy="scan again",
            )
