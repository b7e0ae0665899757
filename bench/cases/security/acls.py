"""The cost of a client's rights: ACLs put in place, one more of them, a judgement, and one that the connection keeps.

A judgement is held against the smallest Produce request: the whole CPU of an agent whose client sends many at a time,
which then share a file and a commit. No request of records costs less.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from agents.security.audit import Audit
from agents.security.rights import JudgedRights
from bench.cases.security.secured import SecuredStack
from bench.loads.clients import create_topic
from bench.loads.raw import connected
from bench.registry import Size
from bench.table import Cell, Column, Table
from security.acls.matcher import Matcher, permits
from security.acls.values import Acl, Operation, PatternType, Permission, ResourceType
from wire.api import decode_response
from wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import NewRecord, build_batch

PRODUCE, VERSION = 0, 9
USERS = 1_000
HOST = "10.0.0.1"
COUNTS = (1_000, 100_000)
AT_ONCE = 100


def table(stack: SecuredStack, size: Size) -> Table:
    calls = 20_000 if size is Size.SMALL else 200_000
    return measure(COUNTS, calls=calls, request_us=request_us(stack, calls // 10))


def measure(counts: Sequence[int], *, calls: int, request_us: float) -> Table:
    """`request_us`: a request's CPU."""
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
        f"A Produce request of one record, {AT_ONCE} at a time, costs the agent {request_us:.0f} us of CPU in this run."
        " A judgement is made once for each topic of a connection, and again when ACLs have changed; then it is kept."
        " The least of five repeats.",
        (
            Column("ACLs"),
            Column("build", "ms", 0),
            Column("one more", "us", 1),
            Column("judgement", "us", 2),
            Column("kept", "us", 2),
            Column("judgement, of a request", "%", 2),
            Column("kept, of a request", "%", 2),
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


def request_us(stack: SecuredStack, count: int) -> float:
    """The agent's CPU for a Produce request of one record."""
    topic = "requests"
    create_topic(stack.plain, topic, 1)
    part = PartitionProduceData(index=0, records=build_batch([NewRecord(0, b"k", bytes(100))]))
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[part])]
    )
    sent = 0
    with connected(stack.plain) as client:

        def some() -> None:
            for _ in range(AT_ONCE):
                client.send(PRODUCE, VERSION, request)
            for _ in range(AT_ONCE):
                _, answer = decode_response(PRODUCE, VERSION, client.receive())
                assert isinstance(answer, ProduceResponse)
                if answer.responses[0].partition_responses[0].error_code:
                    raise RuntimeError(f"a record was not stored: {answer}")

        some()
        before = stack.read()
        while sent < count:
            some()
            sent += AT_ONCE
    return (stack.read() - before).agents.cpu_s * 1e6 / sent


def _least_us(call: Callable[[], object], calls: int) -> float:
    def once() -> float:
        began = time.process_time()
        for _ in range(calls):
            call()
        return (time.process_time() - began) / calls * 1e6

    return min(once() for _ in range(5))
