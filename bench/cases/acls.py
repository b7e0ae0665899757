"""What a client's rights cost: ACLs put in place, one more of them, a judgement, and one that the connection keeps.

A judgement is held against the least that a request costs, which is to decode a Produce request of one small batch and
to encode its answer. All else that an agent does for it (the socket, validation, the file) makes the share smaller.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence

from agents.security.audit import Audit
from agents.security.rights import JudgedRights
from bench.registry import Size
from bench.table import Cell, Column, Table
from security.acls.matcher import Matcher, permits
from security.acls.values import Acl, Operation, PatternType, Permission, ResourceType
from wire.api import decode_request, encode_request, encode_response, read_request_header
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wire.records import NewRecord, build_batch

PRODUCE, VERSION = 0, 9
USERS = 1_000
HOST = "10.0.0.1"
COUNTS = (1_000, 100_000)


def run(size: Size) -> Iterator[Table]:
    yield measure(COUNTS, calls=20_000 if size is Size.SMALL else 200_000)


def measure(counts: Sequence[int], *, calls: int) -> Table:
    request_us = _request_us(calls // 4)
    rows: list[list[Cell]] = []
    for count in counts:
        print(f"{count} ACLs", file=sys.stderr)
        acls = some_acls(count)
        began = time.process_time()
        matcher = Matcher(acls)
        build_ms = (time.process_time() - began) * 1000
        one = acls[count // 2]
        names = [acl.resource_name for acl in acls[:: max(count // 500, 1)]]

        def again(acl: Acl = one, matcher: Matcher = matcher) -> None:
            matcher.remove(acl)
            matcher.add(acl)

        def judge(acl: Acl = one, matcher: Matcher = matcher, names: Sequence[str] = names) -> None:
            for name in names:
                permits(matcher.held(acl.principal, HOST, ResourceType.TOPIC, name), Operation.READ)

        rights = JudgedRights(matcher, Audit(), one.principal, HOST, everything=False, shadow=False)

        def kept(name: str = one.resource_name, rights: JudgedRights = rights) -> None:
            rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, name)

        judge_us = _least_us(judge, calls // len(names) + 1) / len(names)
        kept_us = _least_us(kept, calls)
        rows.append(
            [
                count,
                build_ms,
                _least_us(again, calls // 10) / 2,
                judge_us,
                kept_us,
                100 * judge_us / request_us,
                100 * kept_us / request_us,
            ]
        )
    return Table(
        "A client's rights",
        f"A small Produce request takes {request_us:.1f} us to decode and to answer, without all else that is done for"
        " it. The least of five repeats.",
        (
            Column("ACLs"),
            Column("build", "ms", 0),
            Column("one more", "us", 1),
            Column("judgement", "us", 2),
            Column("kept", "us", 2),
            Column("judgement, of that", "%", 1),
            Column("kept, of that", "%", 1),
        ),
        rows,
    )


def some_acls(count: int) -> list[Acl]:
    """Each user may read or write some topics, a third of them by prefix."""
    return [
        Acl(
            resource_type=ResourceType.TOPIC,
            pattern_type=PatternType.PREFIXED if number % 3 == 0 else PatternType.LITERAL,
            resource_name=f"team-{number % USERS:03d}-topic-{number:06d}",
            principal=f"User:u{number % USERS}",
            host="*",
            operation=Operation.READ if number % 2 else Operation.WRITE,
            permission=Permission.ALLOW,
        )
        for number in range(count)
    ]


def _request_us(calls: int) -> float:
    batch = build_batch([NewRecord(0, b"k", bytes(100))])
    part = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name="topic", partition_data=[part])]
    )
    frame = memoryview(b"".join(encode_request(PRODUCE, VERSION, 1, "client", request)))[4:]

    def once() -> None:
        header, position = read_request_header(frame)
        decode_request(header, frame, position)
        parts = [PartitionProduceResponse(index=0, base_offset=7)]
        encode_response(
            header, ProduceResponse(responses=[TopicProduceResponse(name="topic", partition_responses=parts)])
        )

    return _least_us(once, calls)


def _least_us(call: Callable[[], object], calls: int) -> float:
    def once() -> float:
        began = time.process_time()
        for _ in range(calls):
            call()
        return (time.process_time() - began) / calls * 1e6

    return min(once() for _ in range(5))
