"""DeleteTopics 1-6, by name or (v6) by id. The name may be used again at once, under a new id."""

from __future__ import annotations

from contextlib import suppress

from agents.broker import Broker
from agents.security.refusals import check_right
from agents.topics.rules import RequestError, code_of
from agents.yielding import LoopYielder
from runtime.errors import SiltstoneError
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from wire.schema import ZERO_UUID


async def handle(broker: Broker, header: RequestHeader, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    wanted = (
        request.topics if header.api_version >= 6 else [DeleteTopicState(name=name) for name in request.topic_names]
    )
    try:
        await broker.follower.catch_up()
    except SiltstoneError as error:
        return DeleteTopicsResponse(responses=[_failed(each, error) for each in wanted])
    results = [await _delete(broker, header, each) async for each in LoopYielder().through(wanted)]
    with suppress(SiltstoneError):  # deleted all the same; the follower sees it when the store answers again
        await broker.follower.catch_up()
    if not broker.rights().is_unlimited:
        # The place of an answer must not tell an absent topic from one that the client may not see.
        results.sort(key=lambda _: broker.runtime.ids.jitter())
    return DeleteTopicsResponse(responses=results)


async def _delete(broker: Broker, header: RequestHeader, wanted: DeleteTopicState) -> DeletableTopicResult:
    shown = wanted
    try:
        if wanted.name is not None and wanted.topic_id != ZERO_UUID:
            raise RequestError(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
        if wanted.name is not None:
            # Who may describe a topic hears that it is not there, whatever else the client may do.
            _check_allowed(broker, Operation.DESCRIBE, wanted.name)
        topic = (
            broker.topic_cache.topic(wanted.name)
            if wanted.name is not None
            else broker.topic_cache.topic_by_id(wanted.topic_id)
        )
        if topic is None:
            by_name = wanted.name is not None
            raise RequestError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID,
                f"no topic {wanted.name!r}" if by_name else f"no topic with id {wanted.topic_id}",
            )
        if wanted.name is None and broker.rights().sees(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            shown = DeleteTopicState(name=topic.name, topic_id=topic.topic_id)
        _check_allowed(broker, Operation.DELETE, topic.name, shown.name)
        broker.throttle.count_mutation(header, len(topic.partition_ids))
        await broker.metadata.agents.delete_topic(topic.topic_id)
        await broker.hint_others()
    except SiltstoneError as error:
        return _failed(shown, error)
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)


def _check_allowed(broker: Broker, operation: Operation, name: str, shown: str | None = "") -> None:
    """Raises RequestError. `shown`: the name that the client may hear, "" for `name` itself."""
    rights = broker.rights()
    if not rights.holds_cluster(Operation.DELETE):
        try:
            check_right(rights, operation, ResourceType.TOPIC, name)
        except RequestError as refused:
            if shown is None:
                raise RequestError(refused.code, "no right to delete this topic; an ACL can give it") from None
            raise


def _failed(wanted: DeleteTopicState, error: SiltstoneError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=wanted.name, topic_id=wanted.topic_id, error_code=code_of(error), error_message=str(error)
    )
