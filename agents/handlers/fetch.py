"""Fetch 4-16 (KIP-74 limits, KIP-227 sessions, KIP-516 topic ids): whole batches from memory or the store.

A request waits until `min_bytes` are there or `max_wait_ms` have passed, parked in memory. Records come by the
follower, so a caught-up consumer costs the store nothing. Within a session (`agents/read/sessions.py`) the answer names
only news for the client.

Readers of committed records get whole batches below the last stable offset, those of aborted transactions too, and the
list of these transactions. At or above that offset they wait like readers at the end.

An offset outside the known log is out of range only if a fresh read of the watermarks says so, because the agent's view
may be late. If it is above our end but not above the fresh one, another agent's commit is on its way here, and the
request waits. A topic or partition that this agent does not know is looked for in the store before it is called
unknown; if the store does not say in time, the answer is KAFKA_STORAGE_ERROR, after which clients ask again.

Any agent serves any partition. Only one that stops answers NOT_LEADER_OR_FOLLOWER, so that clients go to another
(`agents/draining.py`). No answer names another leader (KIP-951) or a replica to read from (KIP-392). A topic is found
by its id alone, so no answer is INCONSISTENT_TOPIC_ID.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from agents.answers import HeldAnswer
from agents.broker import Broker
from agents.read.budget import Release
from agents.read.reader import Taken, Want
from agents.read.sessions import FULL_WITHOUT, FetchPart, TopicKey, add_by_topic
from agents.request_context import RequestContext, RequestTrace, current_request
from agents.security.rights import Rights
from agents.yielding import chunks_with_yields
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.topics import Topic
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.fetch import AbortedTransaction, FetchRequest, FetchResponse, PartitionData

READ_COMMITTED = 1
LEADER_EPOCH = 0
"""The same in every API: a client that saw -1 in one answer and 0 in another would stall. No replica can diverge."""
WAIT_MS_MAX = 60_000
"""The longest that a fetch waits for records, even if the client asks for more: a client that has gone away holds its
fetch session no longer than this."""
TOPIC_IDS_SINCE = 13
REFUSED_AGAIN_MS = 100
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_NO_TOPIC, _NO_PARTITION = -1, -2
"""Stands in place of a partition id."""


async def handle(broker: Broker, header: RequestHeader, request: FetchRequest) -> FetchResponse | HeldAnswer:
    asking = current_request()
    trace = asking.trace if asking is not None else None
    sessions = broker.fetch_sessions
    by_id = header.api_version >= TOPIC_IDS_SINCE
    context = sessions.begin(request, by_id=by_id, now_ms=broker.runtime.clock.monotonic_ms())
    if context.error is not ErrorCode.NONE:
        return FetchResponse(error_code=context.error)
    deadline_ms = broker.runtime.clock.monotonic_ms() + min(max(request.max_wait_ms, 0), WAIT_MS_MAX)
    quota_bytes = broker.throttle.fetch_bytes_max()
    if not quota_bytes:
        return sessions.answer_nothing(context, now_ms=broker.runtime.clock.monotonic_ms())
    parts = context.parts
    if broker.draining.sends_away:
        # The first refusal comes at once. A client that asks again without a pause must not take the processor.
        if asking is not None and asking.client.was_sent_away:
            await broker.runtime.clock.sleep_ms(min(max(request.max_wait_ms, 0), REFUSED_AGAIN_MS))
        elif asking is not None:
            asking.client.was_sent_away = True
        for part in parts:
            _fail(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return sessions.answer(context, now_ms=broker.runtime.clock.monotonic_ms())
    if trace is not None:
        trace.begin("index")
    rights = broker.rights()
    await _resolve(broker, rights, parts)
    await _look_for_unknown(broker, rights, parts)
    await _check_ranges(broker, parts)
    bytes_max = int(min(max(request.max_bytes, 0), broker.settings.fetch_max_bytes, quota_bytes))
    if trace is not None:
        _describe(broker, parts, trace)
    committed_only = request.isolation_level == READ_COMMITTED
    bytes_min = min(request.min_bytes, bytes_max)
    await _wait_for_bytes(broker, parts, bytes_min, deadline_ms, asking, committed_only=committed_only)
    if trace is not None:
        trace.end_part()
    # Others who share its quota may have used it up while it waited.
    if not broker.throttle.fetch_bytes_max():
        return sessions.answer_nothing(context, now_ms=broker.runtime.clock.monotonic_ms())
    # From here on the answer holds memory: the connection releases it when the bytes have left.
    release = await _read(broker, parts, bytes_max, committed_only=committed_only)
    try:
        # Now, not before the read: it may have taken records that came after the loss.
        await _refuse_again(broker, rights, parts)
    except BaseException:
        release()  # the client went away
        raise
    if broker.holds(asking):
        release()  # its next fetch waits
        nothing = sessions.answer_nothing(context, now_ms=broker.runtime.clock.monotonic_ms())
        # Clients take an answer without partitions for one to a client over its quota, and only if it says so.
        nothing.throttle_time_ms = 1
        return nothing
    response, answered = sessions.settle(context, now_ms=broker.runtime.clock.monotonic_ms())
    try:
        async for some in chunks_with_yields(answered):
            add_by_topic(response.responses, some)
    except BaseException:
        release()  # the client went away
        raise
    if request.session_id or request.session_epoch != FULL_WITHOUT:
        broker.runtime.metrics.fetch_sessions.set(len(sessions))
        broker.runtime.metrics.fetch_session_partitions.set(sessions.partitions)
    return HeldAnswer(response, release)


async def _resolve(broker: Broker, rights: Rights, parts: Sequence[FetchPart]) -> None:
    """Find the logs, and refuse what the client may not read."""
    async for some in chunks_with_yields(parts):
        _resolve_some(broker, some)
        if not rights.is_unlimited:
            _refuse_some(broker, rights, some)


async def _refuse_again(broker: Broker, before: Rights, parts: Sequence[FetchPart]) -> None:
    """A fetch that waited, for records or for memory, may have lost its rights meanwhile, and may while we look."""
    while (rights := broker.rights()) is not before:
        async for some in chunks_with_yields(parts):
            _refuse_some(broker, rights, some)
        before = rights


def _refuse_some(broker: Broker, rights: Rights, parts: Sequence[FetchPart]) -> None:
    """Asked once for each partition of a session, and again after each change of ACLs, or from another connection."""
    for part in parts:
        if part.allowed_by is rights:
            continue
        if isinstance(part.topic, str):
            name = part.topic
        elif (topic := broker.topic_cache.topic_by_id(part.topic)) is not None:
            name = topic.name
        else:
            continue  # it gets the error of an id that is not known
        if rights.allows(Operation.READ, ResourceType.TOPIC, name):
            part.allowed_by = rights
        else:
            _fail(part, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _resolve_some(broker: Broker, parts: Sequence[FetchPart]) -> None:
    """The findings of earlier requests of the session hold as long as the topic cache is the same."""
    version = broker.topic_cache.version
    name: TopicKey | None = None
    topic: Topic | None = None
    for part in parts:
        part.answer = None
        # Resolved again only after a change of topics: a session may have thousands of partitions.
        if part.topics_version != version:
            if part.topic != name:
                name = part.topic
                topic = (
                    broker.topic_cache.topic(name) if isinstance(name, str) else broker.topic_cache.topic_by_id(name)
                )
            part.partition_id = _partition_id(topic, part.asked.partition)
            part.topics_version = version
        if part.partition_id == _NO_PARTITION:
            _fail(part, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif part.partition_id == _NO_TOPIC:
            _fail_gone(part)
        # An epoch that no agent ever gave; below 0 means that the client does not know one (KIP-320).
        elif part.asked.current_leader_epoch > LEADER_EPOCH:
            _fail(part, ErrorCode.UNKNOWN_LEADER_EPOCH)
        else:
            part.log = broker.index.partition(part.partition_id)
            if part.log is None:
                _fail_gone(part)


async def _look_for_unknown(broker: Broker, rights: Rights, parts: Sequence[FetchPart]) -> None:
    unknown: list[FetchPart] = []
    async for some in chunks_with_yields(parts):
        unknown += [part for part in some if part.answer is not None and part.answer.error_code in _UNKNOWN]
    if not unknown:
        return
    highest: dict[TopicKey, int] = {}
    for part in unknown:
        highest[part.topic] = max(part.asked.partition, highest.get(part.topic, -1))
    seen = await broker.topic_ids.look_for(highest.items())
    await _resolve(broker, rights, unknown)
    if seen:
        return
    for part in unknown:
        if part.answer is not None and part.answer.error_code in _UNKNOWN:
            # "Unknown" could stop the client; after this error it asks again.
            _fail(part, ErrorCode.KAFKA_STORAGE_ERROR)


def _partition_id(topic: Topic | None, partition: int) -> int:
    if topic is None:
        return _NO_TOPIC
    return topic.partition_ids[partition] if 0 <= partition < len(topic.partition_ids) else _NO_PARTITION


def _fail(part: FetchPart, error: ErrorCode) -> None:
    part.log = None
    part.answer = PartitionData(partition_index=part.asked.partition, error_code=error, high_watermark=-1, records=b"")


def _fail_gone(part: FetchPart) -> None:
    """The topic does not exist, or no longer exists."""
    _fail(
        part,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(part.topic, str) else ErrorCode.UNKNOWN_TOPIC_ID,
    )


async def _check_ranges(broker: Broker, parts: Sequence[FetchPart]) -> None:
    """Refuse offsets that are out of range by the store's own word."""
    doubtful: list[FetchPart] = []
    async for some in chunks_with_yields(parts):
        doubtful += [
            part
            for part in some
            if part.log is not None and not part.log.start <= part.asked.fetch_offset <= part.log.end
        ]
    if not doubtful:
        return
    try:
        fresh = await broker.fresh.get([part.partition_id for part in doubtful])
    except MetadataUnavailableError:
        # The store does not answer. An empty answer makes the client ask again; an error would make it jump.
        return
    for part in doubtful:
        watermarks = fresh.get(part.partition_id)
        if watermarks is None:
            _fail_gone(part)
        elif not watermarks.log_start_offset <= part.asked.fetch_offset <= watermarks.high_watermark:
            _fail(part, ErrorCode.OFFSET_OUT_OF_RANGE)


def _describe(broker: Broker, parts: Sequence[FetchPart], trace: RequestTrace) -> None:
    places: list[tuple[str | None, int]] = []
    for part in parts:
        topic = broker.topic_cache.topic_by_id(part.topic) if not isinstance(part.topic, str) else None
        name = part.topic if isinstance(part.topic, str) else topic.name if topic is not None else None
        places.append((name, part.asked.partition))
    trace.about(places)


async def _wait_for_bytes(
    broker: Broker,
    parts: Sequence[FetchPart],
    bytes_min: int,
    deadline_ms: float,
    asking: RequestContext | None,
    *,
    committed_only: bool,
) -> None:
    waiting = [part.partition_id for part in parts if part.log is not None]
    while waiting and not any(part.answer is not None for part in parts):
        if _bytes_at_hand(parts, bytes_min, committed_only=committed_only) >= bytes_min:
            return
        now_ms = broker.runtime.clock.monotonic_ms()
        # An agent that stops wakes all who wait: their next fetch is sent elsewhere.
        if now_ms >= deadline_ms or broker.draining.sends_away:
            return
        if asking is not None and asking.trace is not None:
            asking.trace.begin("wait")
        has_arrived = await broker.parked_readers.wait(waiting, deadline_ms - now_ms)
        if asking is not None:
            asking.waited_ms += broker.runtime.clock.monotonic_ms() - now_ms
        if not has_arrived:
            return
        # Look up again: the wake-up may come from the topic's deletion, or from an index that was loaded again.
        for part in parts:
            if part.log is not None:
                part.log = broker.index.partition(part.partition_id)
                if part.log is None:
                    _fail_gone(part)


def _bytes_at_hand(parts: Sequence[FetchPart], enough: int, *, committed_only: bool) -> int:
    total = 0
    for part in parts:
        if part.log is None:
            continue
        end, offset = part.log.last_stable_offset if committed_only else part.log.end, part.asked.fetch_offset
        if offset < end:
            total += part.log.bytes_from(offset, min(part.asked.partition_max_bytes, enough), end)
            if total >= enough:
                break
    return total


async def _read(broker: Broker, parts: Sequence[FetchPart], bytes_max: int, *, committed_only: bool) -> Release:
    readable: list[tuple[FetchPart, PartitionData]] = []
    caught_up: list[FetchPart] = []
    async for some in chunks_with_yields(parts):
        _take_ends(broker, some, readable, caught_up, committed_only=committed_only)
    wants = [
        Want(part.partition_id, part.asked.fetch_offset, part.asked.partition_max_bytes, committed_only)
        for part, _ in readable
    ]
    news = partial(_news, broker, caught_up, committed_only=committed_only) if caught_up else None
    reading = await broker.reader.read(wants, bytes_max=bytes_max, news=news)
    for (_, answer), taken in zip(readable, reading.taken, strict=True):
        _fill_records(answer, taken, committed_only=committed_only)
    return reading.release


async def _news(broker: Broker, caught_up: Sequence[FetchPart], *, committed_only: bool) -> bool:
    """Wait until there are records at the end of one of these partitions."""
    partition_ids = [part.partition_id for part in caught_up]
    while await broker.parked_readers.wait(partition_ids, WAIT_MS_MAX):
        # Records of open transactions move the end too, as often as anybody writes.
        if not committed_only or any(_is_news(broker, part) for part in caught_up):
            return True
    return False


def _is_news(broker: Broker, part: FetchPart) -> bool:
    log = broker.index.partition(part.partition_id)
    return log is None or part.asked.fetch_offset < log.last_stable_offset


def _take_ends(
    broker: Broker,
    parts: Sequence[FetchPart],
    readable: list[tuple[FetchPart, PartitionData]],
    caught_up: list[FetchPart],
    *,
    committed_only: bool,
) -> None:
    """Begin the answers from the present state; add partitions with records to `readable`, the rest to `caught_up`."""
    for part in parts:
        if part.log is None:
            continue
        # Look up again: the topic may have been deleted, or the index loaded again, while we waited.
        log = part.log = broker.index.partition(part.partition_id)
        if log is None:
            _fail_gone(part)
            continue
        # Asked first: few partitions have transactions, and a request may have thousands of partitions.
        last_stable_offset = log.end if log.transactions is None else log.last_stable_offset
        is_caught_up = part.asked.fetch_offset >= (last_stable_offset if committed_only else log.end)
        if is_caught_up:
            caught_up.append(part)
            # No answer at all: within a session, silence means that nothing has changed.
            if part.is_told(log.end, log.start, last_stable_offset):
                continue
        # Taken before the bytes: an answer may tell less than there is by now, never more than it can prove.
        part.answer = PartitionData(
            partition_index=part.asked.partition,
            high_watermark=log.end,
            last_stable_offset=last_stable_offset,
            log_start_offset=log.start,
            aborted_transactions=[] if committed_only else None,
            records=b"",
        )
        if not is_caught_up:
            readable.append((part, part.answer))


def _fill_records(answer: PartitionData, taken: Taken, *, committed_only: bool) -> None:
    if taken.error is not ErrorCode.NONE:
        answer.error_code = taken.error
    if taken.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        # The log start has moved past it meanwhile.
        answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1
    answer.records = taken.buffers
    if taken.buffers:
        # What was planned again, because an object was gone or late, may hold more than there was at first.
        answer.high_watermark = max(answer.high_watermark, taken.next_offset)
        if committed_only:
            answer.last_stable_offset = max(answer.last_stable_offset, taken.next_offset)
    if taken.aborted:
        answer.aborted_transactions = [
            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset) for each in taken.aborted
        ]
