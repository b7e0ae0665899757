"""Produce 3-13: validate every batch, hand the good ones to the write path, answer when they are committed.

Validation runs in the read callback, so batches enter the buffer in the order they came. Only the waiting is
asynchronous, and a connection may have many waiting requests. A request with more batches, or more records that must be
looked at, than a turn of the loop is enough for is the exception: its connection begins no other request before its
batches are in the buffer (`agents/write/walks.py`). Partitions succeed and fail one by one. acks 1 and -1
both wait for the commit. acks 0 gets no answer, and any error closes the connection, because a client could notice
nothing else. An agent that stops takes such records to its end; all others it refuses, and clients go to another agent
(`agents/draining.py`). Kafka's `KafkaApis.handleProduceRequest` and `ReplicaManager.appendRecords`.

From v13 topics have ids instead of names (KIP-516): a topic that was re-created under an old name does not get records
meant for the old one.

A topic or partition that this agent does not know is looked for in the store before it is called unknown; requests
that name the topic wait in line meanwhile. If the store does not say in time, the answer is LEADER_NOT_AVAILABLE, after
which producers try again. If a topic was deleted without our knowledge, the commit finds out.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias
from uuid import UUID

from agents.broker import Broker
from agents.request_context import RequestTrace, current_request
from agents.security.rights import Rights
from agents.write.reply import ProduceReply
from agents.write.stall import patience_ms
from agents.write.submission import BATCH_BYTES, BATCHES_MAX, PendingBatch, Promise, Submission
from agents.write.validation import Refusal, Unwalked, check_produced
from agents.write.walking import WalkBudget, judge_at_once
from agents.write.walks import ProduceLine
from agents.yielding import PARTS_PER_TURN
from metadata.contract.l0_commit import BatchResult
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.batch import BatchHeader
from wire.error_codes import ErrorCode
from wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_ResultsFuture: TypeAlias = "asyncio.Future[Sequence[BatchResult]]"
_Portion: TypeAlias = tuple[Sequence[PendingBatch], Promise]
"""Batches to hand over, and the promise of their results."""


TOPIC_IDS_SINCE = 13
_CHECKED = object()
_MOVED = Refusal(
    error=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    message="this agent stops and takes no records any more; Metadata names the others",
)
_NOT_SEEN = Refusal(
    error=ErrorCode.LEADER_NOT_AVAILABLE,
    message="the metadata store did not say in time whether there is such a partition; try again",
)

_NOT_ALLOWED = Refusal(
    error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, message="no right to write to this topic; an ACL can give it"
)


class DropConnectionError(Exception):
    """acks=0, and something was refused or the agent stops: the connection is closed, as in Kafka."""


_NO_TRANSACTIONAL_ID = Refusal(
    error=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    message="the batch is transactional, but the request names no transactional id",
)
_SEVERAL_PRODUCERS = Refusal(
    error=ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    message="the transactional batches of a request must be of one producer",
)
_BUSY = Refusal(
    error=ErrorCode.KAFKA_STORAGE_ERROR,
    message="the records of too many other requests are being checked; try again",
)


@dataclass(slots=True)
class _Accepted:
    """The good batches of a request, and those that are not known to be bad yet."""

    batches: list[PendingBatch] = field(default_factory=list[PendingBatch])
    answers: list[PartitionProduceResponse] = field(default_factory=list[PartitionProduceResponse])
    """The answer to fill for each batch."""
    unwalked: list[tuple[int, Unwalked]] = field(default_factory=list[tuple[int, Unwalked]])
    """Batches, by their place among the others, whose records take more than this turn of the event loop."""
    turn: WalkBudget | None = None
    """The work that may still be done in this turn; made when it is needed."""
    transactional_id: str | None = None
    transactional_producer: int | None = None
    """The producer of its transactional batches."""

    def refused_transaction(self, header: BatchHeader) -> Refusal | None:
        """Kafka's KafkaApis.handleProduceRequest and ReplicaManager.appendRecords."""
        if self.transactional_id is None:
            return _NO_TRANSACTIONAL_ID
        if self.transactional_producer not in (None, header.producer_id):
            return _SEVERAL_PRODUCERS
        self.transactional_producer = header.producer_id
        return None

    def judged(self, unwalked: Unwalked) -> BatchHeader | Refusal | Unwalked:
        """The verdict, if it can be had in this turn."""
        if self.turn is None:
            self.turn = WalkBudget.of_turn()
        # Behind one that has to wait the others wait too, and what is left of the turn is not tried at each.
        if self.unwalked and not unwalked.is_late:
            return unwalked
        return judge_at_once(unwalked, self.turn) or unwalked

    def refuse(self, refusals: Mapping[int, Refusal]) -> None:
        """Take out these batches, by their places; none is unwalked any more."""
        for at, refusal in refusals.items():
            answer = self.answers[at]
            answer.error_code, answer.error_message = refusal.error, refusal.message
            answer.record_errors = _record_errors(refusal)
        self.batches = [each for at, each in enumerate(self.batches) if at not in refusals]
        self.answers = [each for at, each in enumerate(self.answers) if at not in refusals]
        self.unwalked = []

    def settle(self, verdicts: Sequence[BatchHeader | Refusal]) -> None:
        """Take out the bad ones; a verdict for each that was unwalked."""
        pairs = zip(self.unwalked, verdicts, strict=True)
        self.refuse({at: verdict for (at, _), verdict in pairs if isinstance(verdict, Refusal)})


def handle(
    broker: Broker, header: RequestHeader, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None]:
    """None = no answer (acks 0)."""
    by_id = header.api_version >= TOPIC_IDS_SINCE
    rights = broker.rights()
    wanted: dict[UUID | str, int] = {}
    for topic in request.topic_data:
        # A topic that the client may not write to is not looked for.
        if rights.is_unlimited or by_id or rights.sees(Operation.WRITE, ResourceType.TOPIC, topic.name):
            key = topic.topic_id if by_id else topic.name
            wanted[key] = max([wanted.get(key, -1), *[part.index for part in topic.partition_data]])
    looking = broker.topic_ids.line_up(wanted.items(), _records_bytes(request))
    if isinstance(looking, bool):
        return _take(broker, header, request, seen=looking)
    return _after_looking(broker, header, request, looking)


def _records_bytes(request: ProduceRequest) -> int:
    return sum(len(part.records or b"") for topic in request.topic_data for part in topic.partition_data)


async def _after_looking(
    broker: Broker, header: RequestHeader, request: ProduceRequest, looking: Awaitable[bool]
) -> ProduceResponse | None:
    answer = _take(broker, header, request, seen=await looking)
    del request  # the write path holds, and counts, the waiting batches
    return answer if isinstance(answer, ProduceResponse) else await answer


def _take(
    broker: Broker, header: RequestHeader, request: ProduceRequest, *, seen: bool
) -> ProduceResponse | Awaitable[ProduceResponse | None]:
    """`seen`: a topic or partition that is not known does not exist."""
    refused = _refusal_of_all(broker, broker.rights(), request)
    accepted = _Accepted(transactional_id=request.transactional_id)
    response = ProduceResponse()
    checks = _checks(broker, header, request, response, accepted, refused=refused, seen=seen)
    # Nearly every request is checked in one turn. Of one that names very many topics this turn has done enough.
    is_checked = len(request.topic_data) <= PARTS_PER_TURN and next(checks, _CHECKED) is _CHECKED
    asking = current_request()
    line = asking.client.produce_line if asking is not None else ProduceLine()
    if not is_checked:
        rest = broker.record_walks.take(partial(_in_turns, checks), _checked_bytes(request))
        if rest is None:
            response, accepted = ProduceResponse(), _Accepted(transactional_id=request.transactional_id)
            busy = _checks(broker, header, request, response, accepted, refused=_BUSY, seen=seen)
            rest = asyncio.ensure_future(_in_turns(busy))
        return _take_in_line(broker, header, request, response, accepted, line, rest)
    if accepted.unwalked or not line.is_empty:
        return _take_in_line(broker, header, request, response, accepted, line)
    return _hand_over(broker, header, request, response, accepted)


def _checked_bytes(request: ProduceRequest) -> int:
    """Memory that a request takes while its batches are checked."""
    return _records_bytes(request) + BATCH_BYTES * sum(len(topic.partition_data) for topic in request.topic_data)


async def _in_turns(checks: Iterator[None]) -> None:
    await asyncio.sleep(0)  # the first turn is over
    for _ in checks:
        await asyncio.sleep(0)


def _checks(
    broker: Broker,
    header: RequestHeader,
    request: ProduceRequest,
    response: ProduceResponse,
    accepted: _Accepted,
    *,
    refused: Refusal | None,
    seen: bool,
) -> Iterator[None]:
    """Fill in the answer and the good batches. Stops after each PARTS_PER_TURN of them, if there are more."""
    rights = broker.rights()
    left = PARTS_PER_TURN
    for topic in request.topic_data:
        refusal = refused
        if refusal is None and not rights.is_unlimited and not _may_write(broker, header, rights, topic):
            refusal = _NOT_ALLOWED
        answers: list[PartitionProduceResponse] = []
        response.responses.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
        for part in topic.partition_data:
            if not left:
                yield
                left = PARTS_PER_TURN
            left -= 1
            answers.append(
                _refused(part.index, refusal)
                if refusal is not None
                else _check(broker, header, topic, part, accepted, seen=seen)
            )


def _take_in_line(
    broker: Broker,
    header: RequestHeader,
    request: ProduceRequest,
    response: ProduceResponse,
    accepted: _Accepted,
    line: ProduceLine,
    rest: Awaitable[None] | None = None,
) -> Awaitable[ProduceResponse | None]:
    """For a request with records to walk, or behind one of its connection; it is in the line when this returns.

    `rest`: the checks of more batches than one turn of the loop is enough for.
    """
    walk = _begin_walk(broker, request, accepted) if rest is None else None
    before, place = line.join()

    async def hand_over_in_turn(request: ProduceRequest) -> ProduceResponse | None:
        # Cancelled before it begins, it never leaves the line; but then the connection has ended.
        nonlocal accepted, walk
        try:
            if rest is not None:
                await rest
                walk = _begin_walk(broker, request, accepted)
            if walk is not None:
                accepted.settle(await walk)
            if before is not None:
                # Shielded: the future belongs to the request in front, not to this one.
                await asyncio.shield(before)
            if (refused := _refusal_of_all(broker, broker.rights(), request)) is not None:
                accepted.refuse(dict.fromkeys(range(len(accepted.batches)), refused))
            portions, answer = _promised(broker, header, request, response, accepted)
            submitting = _submit_in_turns(broker, portions, waits=request.acks != 0)
            try:
                # Shielded: a request without acks is stored whole, also if its client leaves at once.
                whole = asyncio.shield(broker.record_walks.hand_over(submitting)) if len(portions) > 1 else submitting
                await whole
            except asyncio.CancelledError:
                if inspect.iscoroutine(answer):
                    answer.close()
                elif isinstance(answer, asyncio.Future):
                    answer.cancel()  # or it is kept until the timeout, which the client chose
                raise
        finally:
            line.leave(place)
        # The write path holds, and counts, the waiting batches.
        del request, portions
        accepted = _Accepted()
        return answer if isinstance(answer, ProduceResponse) else await answer

    return hand_over_in_turn(request)


def _begin_walk(
    broker: Broker, request: ProduceRequest, accepted: _Accepted
) -> asyncio.Task[list[BatchHeader | Refusal]] | None:
    """None: no records need one, or there is no room for it and their batches are refused."""
    if not accepted.unwalked:
        return None
    walk = broker.record_walks.begin([each for _, each in accepted.unwalked], _records_bytes(request))
    if walk is None:
        accepted.settle([_BUSY] * len(accepted.unwalked))
    return walk


def _hand_over(
    broker: Broker, header: RequestHeader, request: ProduceRequest, response: ProduceResponse, accepted: _Accepted
) -> ProduceResponse | Awaitable[ProduceResponse | None]:
    """Give the good batches to the write path."""
    portions, answer = _promised(broker, header, request, response, accepted)
    for each in portions:
        _submit(broker, each, waits=request.acks != 0)
    return answer


def _promised(
    broker: Broker, header: RequestHeader, request: ProduceRequest, response: ProduceResponse, accepted: _Accepted
) -> tuple[Sequence[_Portion], ProduceResponse | Awaitable[ProduceResponse | None]]:
    """The good batches in portions, and the answer."""
    broker.write_path.outcomes.refused_at_once(response, taken=len(accepted.batches))
    asking = current_request()
    if asking is not None and asking.trace is not None:
        _describe(broker, header, request, accepted, asking.trace)
        if accepted.batches:
            asking.trace.begin("buffered")
    portions = _portions(accepted.batches)
    if request.acks == 0:
        # Plain futures: without an answer there is nothing to time out.
        promises: list[_ResultsFuture] = [asyncio.get_running_loop().create_future() for _ in portions]
        kept = [(accepted.batches[each], promise) for each, promise in zip(portions, promises, strict=True)]
        return kept, _unanswered(broker, request.timeout_ms, response, promises)
    # A refusal for the stall waits like any answer: answered at once, it would be retried at once.
    if not accepted.batches and broker.stall.refusal is None:
        return (), response
    # The reply does not keep the batches: a delayed answer must not keep its records.
    reply = ProduceReply(
        response,
        timeout_ms=request.timeout_ms,
        stall=broker.stall,
        full=broker.write_path.full,
        outcomes=broker.write_path.outcomes,
        runtime=broker.runtime,
        timers=broker.timers,
        gone=_gone(header),
    )
    # All shares before the first submission, or the first result could end the reply.
    shares = [(accepted.batches[each], reply.share(accepted.answers[each])) for each in portions]
    if not accepted.batches:
        reply.settle(0)
    return shares, reply.future


def _describe(
    broker: Broker, header: RequestHeader, request: ProduceRequest, accepted: _Accepted, trace: RequestTrace
) -> None:
    by_id = header.api_version >= TOPIC_IDS_SINCE
    places: list[tuple[str | None, int]] = []
    for asked in request.topic_data:
        topic = broker.topic_cache.topic_by_id(asked.topic_id) if by_id else None
        name = (topic.name if topic is not None else None) if by_id else asked.name
        places += [(name, part.index) for part in asked.partition_data]
    trace.about(places, records=sum(batch.header.records_count for batch in accepted.batches))
    trace.span.set({"siltstone.acks": request.acks})


def _portions(batches: Sequence[PendingBatch]) -> list[slice]:
    """At most as many batches at a time as one file may hold."""
    return [slice(start, start + BATCHES_MAX) for start in range(0, len(batches), BATCHES_MAX)]


async def _submit_in_turns(broker: Broker, portions: Sequence[_Portion], *, waits: bool) -> None:
    for number, each in enumerate(portions):
        # A portion may fill a file, and to lay that out takes a good part of a turn.
        if number:
            await asyncio.sleep(0)
        _submit(broker, each, waits=waits)


def _submit(broker: Broker, portion: _Portion, *, waits: bool) -> None:
    asking = current_request()
    sender = asking.client.sender if asking is not None and waits else None
    broker.write_path.submit(Submission(*portion, asking, sender))


def _may_write(broker: Broker, header: RequestHeader, rights: Rights, asked: TopicProduceData) -> bool:
    name = asked.name
    if header.api_version >= TOPIC_IDS_SINCE:
        topic = broker.topic_cache.topic_by_id(asked.topic_id)
        if topic is None:
            return True  # it gets the error of an id that is not known
        name = topic.name
    return rights.allows(Operation.WRITE, ResourceType.TOPIC, name)


def _refusal_of_all(broker: Broker, rights: Rights, request: ProduceRequest) -> Refusal | None:
    if request.acks not in (-1, 0, 1):
        return Refusal(error=ErrorCode.INVALID_REQUIRED_ACKS, message=f"acks must be -1, 0 or 1, not {request.acks}")
    if broker.draining.sends_away and request.acks:
        return _MOVED
    name = request.transactional_id
    if name is not None and not rights.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        return Refusal(
            error=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            message="no right to use this transactional id; an ACL can give it",
        )
    index_bytes_max = broker.settings.index_bytes_max
    # Every L0 file adds to the index of every agent: one that is full stops the writing, not the reading.
    if broker.index.bytes_used >= index_bytes_max:
        return Refusal(
            error=ErrorCode.KAFKA_STORAGE_ERROR,
            message=f"the index of live files has reached index.bytes.max ({index_bytes_max}): merging lags behind",
        )
    if (stalled := broker.stall.refusal) is not None:
        return Refusal(error=ErrorCode.KAFKA_STORAGE_ERROR, message=stalled)
    if (full := broker.write_path.full.refusal) is not None:
        return Refusal(error=ErrorCode.KAFKA_STORAGE_ERROR, message=full)
    return None


def _check(
    broker: Broker,
    header: RequestHeader,
    asked: TopicProduceData,
    part: PartitionProduceData,
    accepted: _Accepted,
    *,
    seen: bool,
) -> PartitionProduceResponse:
    """Validate one partition's batch; a good one is added to `accepted` with the answer to be filled later."""
    by_id = header.api_version >= TOPIC_IDS_SINCE
    topic = broker.topic_cache.topic_by_id(asked.topic_id) if by_id else broker.topic_cache.topic(asked.name)
    if topic is None or not 0 <= part.index < len(topic.partition_ids):
        if not seen:
            return _refused(part.index, _NOT_SEEN)
        error = _gone(header) if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return PartitionProduceResponse(index=part.index, error_code=error, base_offset=-1)
    partition_id = topic.partition_ids[part.index]
    log = broker.index.partition(partition_id)
    # Kafka tells the log start with refusals too; -1 where the partition is not known here yet.
    log_start_offset = log.start if log is not None else -1
    rules = broker.topic_cache.rules(topic)
    records = None if part.records is None else memoryview(part.records)
    verdict = check_produced(records, rules=rules, api_version=header.api_version, now_ms=broker.membership.now_ms())
    if not isinstance(verdict, BatchHeader):
        if isinstance(verdict, Unwalked):
            verdict = accepted.judged(verdict)
        if isinstance(verdict, Refusal):
            return _refused(part.index, verdict, log_start_offset)
        if isinstance(verdict, Unwalked):
            accepted.unwalked.append((len(accepted.batches), verdict))
            verdict = verdict.header
    if records is None:
        raise AssertionError("validation accepted a partition without records")
    if verdict.is_transactional and (refusal := accepted.refused_transaction(verdict)) is not None:
        return _refused(part.index, refusal, log_start_offset)
    answer = PartitionProduceResponse(index=part.index, base_offset=-1, log_start_offset=log_start_offset)
    place, sent = (partition_id, topic.topic_id, part.index), (header.api_version, accepted.transactional_id or "")
    accepted.batches.append(PendingBatch(*place, records, verdict, rules.log_append_time, *sent))
    accepted.answers.append(answer)
    return answer


def _gone(header: RequestHeader) -> ErrorCode:
    """The topic does not exist, or no longer exists."""
    by_id = header.api_version >= TOPIC_IDS_SINCE
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _refused(index: int, refusal: Refusal, log_start_offset: int = -1) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=refusal.error,
        base_offset=-1,
        log_start_offset=log_start_offset,
        record_errors=_record_errors(refusal),
        error_message=refusal.message,
    )


def _record_errors(refusal: Refusal) -> list[BatchIndexAndErrorMessage]:
    return [
        BatchIndexAndErrorMessage(batch_index=each.batch_index, batch_index_error_message=each.message)
        for each in refusal.record_errors
    ]


async def _unanswered(
    broker: Broker, timeout_ms: int, response: ProduceResponse, promises: Sequence[_ResultsFuture]
) -> None:
    refused = any(part.error_code for topic in response.responses for part in topic.partition_responses)
    if not refused:
        results = [result for promise in promises for result in await promise]
        refused = any(result.error for result in results)
    if broker.stall.delays:
        # No client waits for this answer, but its place in the line is what slows the client down.
        await broker.stall.hold_back(patience_ms(timeout_ms, 0), refused=refused)
    # The end of its connection is all that tells such a client to go elsewhere.
    if refused or broker.draining.sends_away:
        raise DropConnectionError
