"""DeleteTopics 1-6, by name or (v6) by id. The name may be used again at once, under a new id."""

from __future__ import annotations

from contextlib import suppress

from agents.broker import Broker
from agents.topics.rules import RequestError, code_of
from agents.yielding import LoopYielder
from runtime.errors import SiltstoneError
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
    results = [await _delete(broker, each) async for each in LoopYielder().through(wanted)]
    with suppress(SiltstoneError):  # deleted all the same; the follower sees it when the store answers again
        await broker.follower.catch_up()
    return DeleteTopicsResponse(responses=results)


async def _delete(broker: Broker, wanted: DeleteTopicState) -> DeletableTopicResult:
    try:
        if wanted.name is not None and wanted.topic_id != ZERO_UUID:
            raise RequestError(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
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
        await broker.metadata.agents.delete_topic(topic.topic_id)
        await broker.hint_others()
    except SiltstoneError as error:
        return _failed(wanted, error)
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)


def _failed(wanted: DeleteTopicState, error: SiltstoneError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=wanted.name, topic_id=wanted.topic_id, error_code=code_of(error), error_message=str(error)
    )
