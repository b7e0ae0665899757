"""The first error in an answer, for slow requests and spans."""

from __future__ import annotations

from typing import Any

from agents.request_context import error_of
from wire.messages.metadata import MetadataResponse
from wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from wire.schema import EncodedElements


def test_the_first_error_of_an_answer_is_found_in_its_parts() -> None:
    fine, away = PartitionProduceResponse(index=0), PartitionProduceResponse(index=1, error_code=56)
    answer = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[fine, away])])
    assert error_of(answer) == "KAFKA_STORAGE_ERROR"
    away.error_code = 0
    assert error_of(answer) == error_of(None) == ""


def test_parts_that_are_encoded_already_are_passed_over() -> None:
    # given an answer to Metadata as agents make it
    topics: Any = EncodedElements(1, (b"encoded",))
    # then an answer to a slow or traced request does not count as failed
    assert error_of(MetadataResponse(topics=topics)) == ""
