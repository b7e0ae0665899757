"""The write path's shell: buffer -> seal -> PUT -> commit -> answer.

PUTs overlap, at most `uploads_max` at a time. Commits keep the order of sealing, one at a time, because a producer's
next batch may lie in the next file. A crash leaves behind:

- before the PUT: nothing; clients were not answered and send again;
- after the PUT, before the commit: an orphan object, which only the janitor may delete;
- after the commit, before the answer: committed records; an idempotent retry is recognised as a duplicate.

Transactional batches enter their transactions by one call for the file, which runs beside its PUT; the commit waits for
both. A crash in between leaves partitions in a transaction that have no records, which its end passes over.

If the answer to a commit is lost, the same call is repeated until it answers, and later commits wait: anything else
would lose stored records or store them twice. If the PUT of a file fails for good, its clients get a retriable error
and the file is never committed. `bytes` counts what is buffered or in flight; the server stops reading producers above
its bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agents.registration import DuplicateAgentError
from agents.tail.own_files import own_file
from agents.write.buffer import SealOptions, SealReason, WriteBuffer
from agents.write.entering import Entering
from agents.write.file_log import about_file, begin_commit, begin_span, note_sealed, requests_named
from agents.write.full_store import FullStore
from agents.write.outcomes import BatchOutcomes
from agents.write.seal import SealedL0, seal
from agents.write.submission import Submission
from agents.write.waits import RunningMean, Waits, WaitsReport
from metadata.contract.agents import AgentMetadata
from metadata.contract.errors import MetadataUnavailableError, RightsMissingError
from metadata.contract.files import L0File
from metadata.contract.l0_commit import (
    NOT_TRANSACTIONAL,
    BatchResult,
    CommitInDoubtError,
    CommitL0,
    CommitRefusedError,
    Committed,
    L0Batch,
)
from metadata.contract.leases import WriterFencedError, WriterLease
from metadata.transactions.contract import Entered, TransactionMetadata
from runtime.errors import BugError
from runtime.logging import LOG_CONTEXT, get_logger, log_context
from runtime.runtime import Runtime
from runtime.tracing import CURRENT_SPAN, Span
from storage.keys import file_key
from storage.objects import ObjectStore, ObjectStoreError, StoreFullError
from wire.error_codes import ErrorCode

_log = get_logger(__name__)

COMMIT_BACKOFF_MS = 50.0
COMMIT_BACKOFF_MS_MAX = 2_000.0
"""First and longest pause between two calls of a commit whose answer is lost. All later commits wait behind it."""


@dataclass(frozen=True, slots=True)
class FileOnItsWay:
    """A sealed file between its PUT and its commit; it keeps the lease that it was sealed under."""

    lease: WriterLease
    seq: int
    key: str
    sealed: SealedL0
    uploaded: asyncio.Task[None]
    entered: asyncio.Task[Sequence[Entered]] | None
    """None: no batch is transactional."""
    span: Span | None
    """None unless one of its requests is traced."""
    sealed_ms: float
    """Before its PUT, by our monotonic clock."""

    def as_committed(self, committed: Committed) -> L0File:
        return own_file(self.lease, self.seq, self.key, len(self.sealed.file.parts), committed)


class Lease(Protocol):
    """The agent's identity as the write path needs it (`agents/membership.py`)."""

    @property
    def current(self) -> WriterLease: ...

    def now_ms(self) -> int:
        """The metadata store's time, which also dates the rows. Keys must carry the same time, whatever our own clock
        says."""
        ...

    async def renew(self, fenced: WriterLease) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCallbacks:
    """The owner's reactions to what the write path does."""

    on_committed: Callable[[FileOnItsWay, Committed], None]
    """Before the file's clients are answered."""
    on_bytes_changed: Callable[[], None]
    """`WritePath.bytes` has changed."""


class WritePath:
    def __init__(
        self,
        *,
        options: SealOptions,
        uploads_max: int,
        store: ObjectStore,
        metadata: AgentMetadata,
        transactions: TransactionMetadata,
        partitions_max: int,
        lease: Lease,
        callbacks: WriteCallbacks,
        runtime: Runtime,
    ) -> None:
        self._buffer = WriteBuffer(options)
        self._waits = Waits()
        self._put_ms = RunningMean()
        self._commit_ms = RunningMean()
        self._uploads_max = uploads_max
        self._store = store
        self._metadata = metadata
        self._transactions = transactions
        self._partitions_max = partitions_max
        """Of one transaction."""
        self._lease = lease
        self._on_committed = callbacks.on_committed
        self._on_bytes_changed = callbacks.on_bytes_changed
        self._clock = runtime.clock
        self._ids = runtime.ids
        self._metrics = runtime.metrics
        self._tracing = runtime.tracing
        self._uploads: set[asyncio.Task[None]] = set()
        self._entering: set[asyncio.Task[Sequence[Entered]]] = set()
        self._seq = 0
        self._seq_epoch = -1
        self._named_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0.0
        self._commits: asyncio.Queue[FileOnItsWay | None] = asyncio.Queue()
        self._committer: asyncio.Task[None] | None = None
        self._draining = False
        self._is_drained = False
        self.bytes = 0
        self.outcomes = BatchOutcomes(runtime.metrics)
        self.full = FullStore(runtime)

    # ---- life

    def start(self) -> None:
        self._committer = asyncio.create_task(self._commit_in_order(), name="committer")

    async def drain(self) -> None:
        """Seal the buffer, wait until every file is committed and answered, then end."""
        self._draining = True
        self._poke()
        if self._committer is not None:
            # With records in it, `_seal` ends the line behind the last file: uploads may have no free slot now.
            if not len(self._buffer):
                self._end_line()
            await self._committer

    async def close(self) -> None:
        """End now. Uncommitted files are not answered; their clients send the records again."""
        if self._timer is not None:
            self._timer.cancel()
        committers = [self._committer] if self._committer is not None else []
        tasks: list[asyncio.Task[Any]] = [*self._uploads, *self._entering, *committers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- in

    def submit(self, submission: Submission) -> None:
        """Take validated batches. The promise is kept when they are committed, refused or given up."""
        if self._is_drained:
            # Nobody would commit them, and the agent's end would wait for their answer.
            moved = BatchResult(
                error=int(ErrorCode.NOT_LEADER_OR_FOLLOWER), duplicate=False, base_offset=-1, log_append_time_ms=-1
            )
            return submission.promise.set_result([moved] * len(submission.batches))
        self._buffer.add(submission, self._clock.monotonic_ms())
        self.bytes += submission.held_bytes
        self._metrics.buffered_bytes.set(self.bytes)
        self._poke()
        return self._on_bytes_changed()

    def set_early_share(self, share: float) -> None:
        """Seal early at this share of the budget's rate; 0 = never."""
        self._buffer.set_early_share(share, self._clock.monotonic_ms())

    def waits(self) -> WaitsReport:
        """The clients that wait for this agent, and the bounds of their rounds."""
        per_second, tokens = self._buffer.early_rate(self._clock.monotonic_ms())
        return WaitsReport(
            early_per_second=per_second,
            early_tokens=tokens,
            put_ms=self._put_ms.value,
            commit_ms=self._commit_ms.value,
            clients=self._waits.clients,
        )

    # ---- seal

    def _poke(self) -> None:
        """Seal every file that is due, and set the timer for the next."""
        now_ms = self._clock.monotonic_ms()
        while len(self._uploads) < self._uploads_max:
            reason = SealReason.DRAIN if self._draining and len(self._buffer) else self._buffer.due(now_ms)
            if reason is None:
                break
            self._seal(reason, now_ms)
        due_ms = self._buffer.next_due_ms(now_ms)
        # If every upload slot is taken, the end of an upload pokes us instead of a timer.
        if due_ms is not None and len(self._uploads) < self._uploads_max:
            self._wake_at(due_ms, now_ms)

    def _wake_at(self, due_ms: float, now_ms: float) -> None:
        if self._timer is not None:
            # A timer that rings too early sets itself again: arrivals push the early seal back all the time.
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(max(due_ms - now_ms, 0.2) / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._poke()

    def _seal(self, reason: SealReason, now_ms: float) -> None:
        store_ms = self._lease.now_ms()
        sealed = seal(self._buffer.take(reason, now_ms), now_ms=store_ms)
        lease = self._lease.current
        if lease.epoch != self._seq_epoch:
            # The store counts seqs within an epoch, so a renewed lease begins again.
            self._seq, self._seq_epoch = 0, lease.epoch
        self._seq += 1
        # Strictly increasing in the order of sealing, even if the store's clock goes back or a beat's answer is late:
        # `siltstone/ops/rebuild/uncommitted.py` relies on it.
        self._named_ms = max(store_ms, self._named_ms + 1)
        key = file_key(
            level=0,
            writer_id=lease.writer_id,
            epoch=lease.epoch,
            file_uuid=self._ids.uuid7(self._named_ms),
            created_ms=store_ms,
        )
        note_sealed(key, self._seq, reason, sealed)
        span = begin_span(self._tracing, key, reason, sealed) if self._tracing.on else None
        uploaded = asyncio.create_task(self._upload(key, sealed, span), name=f"put {key}")
        self._uploads.add(uploaded)
        uploaded.add_done_callback(self._uploaded)
        entered: asyncio.Task[Sequence[Entered]] | None = None
        if sealed.entering is not None:
            entered = asyncio.create_task(self._enter(key, sealed.entering), name=f"enter {key}")
            self._entering.add(entered)
            entered.add_done_callback(self._entering.discard)
        # In line before its PUT has ended: the committer waits for each in turn, which keeps the order of sealing.
        sealed_ms = self._clock.monotonic_ms()
        self._commits.put_nowait(FileOnItsWay(lease, self._seq, key, sealed, uploaded, entered, span, sealed_ms))
        self._metrics.l0_files_total.labels(reason=reason.value).inc()
        self._metrics.l0_file_bytes.observe(len(sealed.file.parts))
        self._metrics.l0_bytes_total.inc(len(sealed.file.parts))
        if self._draining and not len(self._buffer):
            self._end_line()

    def _end_line(self) -> None:
        """No file comes behind those in line."""
        self._is_drained = True
        self._commits.put_nowait(None)

    # ---- PUT

    async def _upload(self, key: str, sealed: SealedL0, span: Span | None) -> None:
        # A context of its own: this is the work of the file, not of the request that happened to fill it.
        LOG_CONTEXT.set(about_file(key))
        CURRENT_SPAN.set(span)
        started_ms = self._clock.monotonic_ms()
        try:
            await self._store.put_if_absent(key, sealed.file.parts, crc32c=sealed.file.crc32c)
        except StoreFullError as error:
            self.full.refused(error)
            raise
        self.full.stored()
        put_ms = self._clock.monotonic_ms() - started_ms
        self._metrics.l0_put_seconds.observe(put_ms / 1000)
        self._put_ms.add(put_ms)
        _log.debug("file put", elapsed_ms=round(put_ms, 1))

    def _uploaded(self, task: asyncio.Task[None]) -> None:
        """A slot is free: a file that had to wait for one may be due."""
        self._uploads.discard(task)
        if not task.cancelled():
            task.exception()  # the committer reports it; for a file given up at close this marks the exception as seen
            self._poke()

    # ---- transactions

    async def _enter(self, key: str, entering: Entering) -> Sequence[Entered]:
        """Asks until it is answered: the store that is away would not take the commit either. If the store refuses to
        say, none enters: the other batches of the file, and the files behind it, do not wait for a right to be granted.
        """
        LOG_CONTEXT.set(about_file(key))
        started_ms = self._clock.monotonic_ms()
        backoff_ms = COMMIT_BACKOFF_MS
        while True:
            try:
                entered = await self._transactions.enter(entering.entries, partitions_max=self._partitions_max)
            except MetadataUnavailableError as error:
                _log.warning("transactions not entered, asking again", error=str(error))
                await self._clock.sleep_ms(backoff_ms * (0.5 + self._ids.jitter() / 2))
                backoff_ms = min(backoff_ms * 2, COMMIT_BACKOFF_MS_MAX)
                continue
            except (RightsMissingError, BugError) as error:
                _log.error("transactions not entered, their batches are refused", error=str(error))
                return [Entered(int(ErrorCode.UNKNOWN_SERVER_ERROR), NOT_TRANSACTIONAL)] * len(entering.entries)
            self._metrics.transactions.enter_seconds.observe((self._clock.monotonic_ms() - started_ms) / 1000)
            return entered

    # ---- commit

    async def _commit_in_order(self) -> None:
        while True:
            file = await self._commits.get()
            if file is None:
                return
            with log_context(about_file(file.key)):
                await self._finish_or_give_up(file)
            # Do not keep its bytes and replies until the next file comes.
            del file

    async def _finish_or_give_up(self, file: FileOnItsWay) -> None:
        try:
            await self._finish(file)
        except Exception as error:  # whatever it is, the clients behind this file must hear and the next go on
            _log.exception("file not committed")
            # It is unknown whether the file was stored; this error tells a client exactly that.
            self._give_up(file, ErrorCode.REQUEST_TIMED_OUT, str(error))
        finally:
            if file.span is not None:
                file.span.end()

    async def _finish(self, file: FileOnItsWay) -> None:
        try:
            await file.uploaded
        except ObjectStoreError as error:
            # The object may exist all the same; without a row it is an orphan, which the janitor finds.
            return self._give_up(file, ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        try:
            batches = file.sealed.batches
            if file.entered is not None and file.sealed.entering is not None:
                batches = file.sealed.entering.judged(batches, await file.entered)
            committed = await self._commit_until_answered(file, batches)
        except WriterFencedError as error:
            # Another agent registered our address after us: this file can never be committed, the next ones may be.
            self._give_up(file, ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error))
            return await self._renew(file.lease)
        except CommitRefusedError as error:
            return self._give_up(file, ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        self._metrics.commits_total.labels(outcome="committed").inc()
        # Before the answer: a client that reads what it just wrote finds it in this agent's index.
        self._on_committed(file, committed)
        self._answer(file, committed.results)
        return None

    async def _renew(self, fenced: WriterLease) -> None:
        # Nothing is raised: the caller would give the file up a second time. The next file is fenced too and tries
        # again, unless the agent halts.
        try:
            await self._lease.renew(fenced)
        except DuplicateAgentError as error:
            _log.error("another process has our address, the agent halts", error=str(error))
        except Exception:
            _log.exception("lease not renewed, the next file tries again")

    async def _commit_until_answered(self, file: FileOnItsWay, batches: Sequence[L0Batch]) -> Committed:
        # Built once, because only a call with the same key gets the stored answer of an earlier one.
        request = CommitL0(
            lease=file.lease,
            seq=file.seq,
            key=file.key,
            size_bytes=len(file.sealed.file.parts),
            crc32c=file.sealed.file.crc32c,
            batches=batches,
        )
        started_ms = self._clock.monotonic_ms()
        span = begin_commit(file.span)
        backoff_ms = COMMIT_BACKOFF_MS
        while True:
            try:
                committed = await self._metadata.commit_l0(request)
            # Unavailable counts as in doubt: an earlier call of this loop may still be on its way.
            except (CommitInDoubtError, MetadataUnavailableError) as error:
                self._metrics.commits_total.labels(outcome="in_doubt").inc()
                if isinstance(error, CommitInDoubtError):
                    _log.warning("commit in doubt, repeating it", error=str(error))
                else:
                    _log.warning("commit did not reach Postgres, repeating it", error=str(error))
                if span is not None:
                    span.event("in doubt")
                # Jitter: all agents lose the store at the same moment.
                await self._clock.sleep_ms(backoff_ms * (0.5 + self._ids.jitter() / 2))
                backoff_ms = min(backoff_ms * 2, COMMIT_BACKOFF_MS_MAX)
                continue
            except BaseException as error:
                if span is not None:
                    span.end(error=type(error).__qualname__)
                raise
            commit_ms = self._clock.monotonic_ms() - started_ms
            self._metrics.l0_commit_seconds.observe(commit_ms / 1000)
            self._commit_ms.add(commit_ms)
            _log.debug("file committed", file_id=committed.file_id, elapsed_ms=round(commit_ms, 1))
            if span is not None:
                span.set({"siltstone.file.id": committed.file_id})
                span.end()
            return committed

    # ---- out

    def _answer(self, file: FileOnItsWay, results: Sequence[BatchResult]) -> None:
        submissions = file.sealed.submissions
        for submission, answer in zip(submissions, file.sealed.results_by_submission(results), strict=True):
            self._keep(submission, answer)
        now_ms = self._clock.monotonic_ms()
        self._metrics.blocked_seconds_total.inc(self._waits.answered(submissions, now_ms) / 1000)
        self._buffer.answered((each.sender for each in submissions if each.sender is not None), now_ms)
        self._poke()  # an early seal may have waited for this file
        self._metrics.buffered_bytes.set(self.bytes)
        self._on_bytes_changed()

    def _give_up(self, file: FileOnItsWay, error: ErrorCode, reason: str) -> None:
        facts = requests_named(file.sealed.submissions)
        _log.error("file given up", error=error.name, reason=reason, **facts)
        if file.span is not None:
            file.span.end(error=error.name)
        self._metrics.commits_total.labels(outcome="given_up").inc()
        refused = BatchResult(error=int(error), duplicate=False, base_offset=-1, log_append_time_ms=-1)
        self._answer(file, [refused] * len(file.sealed.batches))

    def _keep(self, submission: Submission, answer: Sequence[BatchResult]) -> None:
        self.bytes -= submission.held_bytes
        self.outcomes.answered(submission, answer)
        # A client that gave up or went away has no promise left; its records are stored all the same.
        if not submission.promise.done():
            submission.promise.set_result(answer)
