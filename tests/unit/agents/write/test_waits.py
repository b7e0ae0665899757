"""The names of clients that wait, which the clients choose."""

from __future__ import annotations

from uuid import UUID

from agents.request_context import ClientConnection, RequestContext
from agents.write.submission import PendingBatch, Submission
from agents.write.waits import CLIENTS_MAX, NAME_CHARS_MAX, Waits
from tests.unit.agents.write.test_write_buffer import OPTIONS, Promise, WriteBuffer, blocked
from wire.api import RequestHeader
from wire.batch import read_header
from wire.records import NewRecord, build_batch


def names_after(*names: str, software: str = "lib") -> list[tuple[str, str]]:
    """The clients of whom the agent tells, after one blocked round of each name."""
    client = ClientConnection(1, "127.0.0.1:1")
    client.software = software
    client.sender, now_ms = blocked(WriteBuffer(OPTIONS), 0.0)
    records = memoryview(build_batch([NewRecord(0, None, b"x")]))
    batch = PendingBatch(1, UUID(int=7), 0, records, read_header(records), False)
    waits = Waits()
    for name in names:
        header = RequestHeader(api_key=0, api_version=9, correlation_id=1, client_id=name)
        asked = Submission([batch], Promise(), RequestContext(header, client), client.sender)
        assert waits.answered([asked], now_ms) > 0
    return [(each.client_id, each.software) for each in waits.clients]


def test_a_name_is_kept_short_and_without_what_a_terminal_would_obey() -> None:
    assert names_after("aircraft-7 é") == [("aircraft-7 é", "lib")]
    assert names_after("a\x1b[2Jb\r\n\u202ec\x00") == [("a?[2Jb???c?", "lib")]
    [(name, software)] = names_after("n" * 32_767, software="s" * 1_000_000)
    assert (len(name), len(software)) == (NAME_CHARS_MAX, NAME_CHARS_MAX)


def test_no_more_clients_are_kept_than_the_bound_however_often_one_changes_its_name() -> None:
    assert len(names_after(*(f"client-{number}" for number in range(2 * CLIENTS_MAX)))) == CLIENTS_MAX
