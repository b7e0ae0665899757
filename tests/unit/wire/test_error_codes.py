"""The table of error codes compared with kio's, which is made from Kafka's `Errors`."""

from __future__ import annotations

from kio.schema.errors import ErrorCode as KioErrorCode

from wire.error_codes import ErrorCode, error_name


def test_numbers_names_and_retriability_are_kafkas() -> None:
    ours = {(int(code), code.name, code.retriable) for code in ErrorCode}

    assert ours == {(int(code), code.name.upper(), code.retriable) for code in KioErrorCode}


def test_every_code_says_what_happened_in_words_of_its_own() -> None:
    messages = [code.message for code in ErrorCode]

    assert all(messages)
    assert len(set(messages)) == len(messages)


def test_a_code_is_an_integer_and_a_newer_one_has_a_name_too() -> None:
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == 3
    assert error_name(3) == "UNKNOWN_TOPIC_OR_PARTITION(3)"
    assert error_name(12345) == "error 12345"
