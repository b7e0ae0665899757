"""`siltstone probe` on real agents: ok, then failed while the agent is killed, then ok; late, lost, and refused."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agents.request_context import ANONYMOUS
from runtime.runtime import Runtime
from security.acls.values import Operation
from siltstone.cli import main
from siltstone.kafka.client import KafkaClient, KafkaError
from siltstone.ops.probe.probing import TOPIC, ForeignTopicError, Prober, RoundTrip
from siltstone.ops.probe.records import Outcome, Sent
from storage.memory import MemoryStore
from storage.objects import Body
from tests.fixtures.acls import allow
from tests.fixtures.agents import Dial, RunningAgent, StartAgent, read_all
from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.s3 import free_port
from tests.fixtures.waiting import until, wait_until
from wire.error_codes import ErrorCode
from wire.records import NewRecord, build_batch

TIMEOUT_MS = 20_000


@asynccontextmanager
async def probing(bootstrap: str, topic: str = TOPIC, *, timeout_ms: float = TIMEOUT_MS) -> AsyncIterator[Prober]:
    prober = Prober(bootstrap, topic, timeout_ms=timeout_ms, runtime=Runtime())
    try:
        yield prober
    finally:
        await prober.close()


def batch(value: bytes) -> bytes:
    return build_batch([NewRecord(int(time.time() * 1000), b"k", value)])


async def end_of(client: KafkaClient, topic: str, partition: int = 0) -> int:
    return (await client.list_offsets(topic, [partition]))[partition]


def ok(trip: RoundTrip) -> bool:
    assert trip.error is None, trip
    return trip.outcome is Outcome.OK and trip.took_ms > 0


async def test_it_creates_its_topic_and_comes_through_again_and_again(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent()
    client = await dial.kafka(running.address)
    async with probing(running.address) as prober, probing(running.address) as beside:
        for _ in range(3):
            assert ok(await prober.round_trip()) and ok(await beside.round_trip())
    assert len((await client.topic(TOPIC)).partitions) == 1
    configs = {each.name: each.value for each in await client.topic_configs(TOPIC) if each.source == "topic"}
    assert configs == {"retention.ms": "3600000", "cleanup.policy": "delete"}
    told = [json.loads(bytes(record.value or b"")) for _, record in await read_all(client, TOPIC)]
    assert sorted(each["sequence"] for each in told) == [1, 1, 2, 2, 3, 3]
    # and: a probe that starts later takes the topic for its own
    async with probing(running.address) as later:
        assert ok(await later.round_trip())


async def test_every_partition_of_a_topic_that_is_there_is_written(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent()
    client = await dial.kafka(running.address)
    await client.create_topic("mine", partitions=3)
    async with probing(running.address, "mine") as prober:
        assert ok(await prober.round_trip()) and ok(await prober.round_trip())
    assert [await end_of(client, "mine", number) for number in range(3)] == [2, 2, 2]


async def test_a_topic_with_other_records_or_many_partitions_is_refused_and_not_touched(
    dial: Dial, start_agent: StartAgent
) -> None:
    running = await start_agent()
    client = await dial.kafka(running.address)
    await client.create_topic("orders", partitions=2)
    await client.produce("orders", 1, batch(b"an order"))
    await client.create_topic("wide", partitions=101)
    for topic, why in (("orders", "offset 0 of partition 1 is of no probe"), ("wide", "101 partitions")):
        async with probing(running.address, topic) as prober:
            with pytest.raises(ForeignTopicError, match=why):
                await prober.round_trip()
    assert [await end_of(client, "orders", number) for number in range(2)] == [0, 1]
    # and: also where a probe's records come first
    async with probing(running.address) as prober:
        assert ok(await prober.round_trip())
    await client.produce(TOPIC, 0, batch(b"an order"))
    async with probing(running.address) as prober:
        with pytest.raises(ForeignTopicError, match="offset 1 of partition 0"):
            await prober.round_trip()
    # and: a compacted topic takes no record of it
    await client.create_topic("compacted", partitions=1, configs={"cleanup.policy": "compact"})
    async with probing(running.address, "compacted") as prober:
        trip = await prober.round_trip()
    assert trip.outcome is Outcome.FAILED and "INVALID_RECORD" in str(trip.error)


async def test_a_store_that_does_not_answer_makes_it_late_until_it_does(dial: Dial, start_agent: StartAgent) -> None:
    class Gated(MemoryStore):
        gate = asyncio.Event()

        async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
            await self.gate.wait()
            await super().put_if_absent(key, body, crc32c=crc32c)

    store = Gated()
    store.gate.set()
    running = await start_agent(store=store)
    async with probing(running.address, timeout_ms=1_000) as prober:
        assert ok(await prober.round_trip())
        store.gate.clear()
        late = await prober.round_trip()
        assert late.outcome is Outcome.LATE and "not over within 1 s" in str(late.error)
        assert 900 < late.took_ms < 10_000
        store.gate.set()
        assert ok(await prober.round_trip())


async def test_an_acknowledged_record_that_is_another_one_now_is_lost_and_told_once(start_agent: StartAgent) -> None:
    running = await start_agent()
    async with probing(running.address) as prober:
        assert ok(await prober.round_trip())
        # given: it was told of another record at this offset
        offset, sent = prober._before[0]
        prober._before[0] = offset, Sent(sent.probe, 99, 0, sent.sent_ms)
        lost = await prober.round_trip()
        assert lost.outcome is Outcome.LOST and "record 99 was acknowledged" in str(lost.error)
        assert ok(await prober.round_trip())
        # and: of an offset that the log has not reached again
        prober._before[0] = 1_000_000, sent
        lost = await prober.round_trip()
        assert lost.outcome is Outcome.LOST and "the log went back" in str(lost.error)
        assert ok(await prober.round_trip())


async def test_what_somebody_deleted_is_not_lost_and_a_topic_that_is_gone_is_created_again(
    dial: Dial, start_agent: StartAgent
) -> None:
    running = await start_agent()
    client = await dial.kafka(running.address)
    async with probing(running.address) as prober:
        for _ in range(3):
            assert ok(await prober.round_trip())
        [partition_id] = next(
            each.partition_ids for each in await running.metadata.agents.list_topics() if each.name == TOPIC
        )
        await running.metadata.agents.delete_records(partition_id, 3)
        assert ok(await prober.round_trip())
        await client.delete_topic(TOPIC)
        gone = await prober.round_trip()
        assert gone.outcome is Outcome.FAILED and "UNKNOWN_TOPIC" in str(gone.error)
        assert ok(await prober.round_trip()), "offsets begin at 0 again in the new topic"


@asynccontextmanager
async def topic_made_again(running: RunningAgent, client: KafkaClient) -> AsyncIterator[Prober]:
    """A probe after two round trips, whose topic was deleted and made again since: its log seems to have gone back."""
    async with probing(running.address) as prober:
        for _ in range(2):
            assert ok(await prober.round_trip())
        await client.delete_topic(TOPIC)
        await client.create_topic(TOPIC, partitions=1)
        yield prober


def before_it_asks(prober: Prober, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[None]]) -> None:
    """Let this happen just before the probe asks whether the topic was replaced."""
    ask = prober._replaced

    async def work_and_ask() -> Any:
        await work()
        return await ask()

    monkeypatch.setattr(prober, "_replaced", work_and_ask)


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_topic_that_somebody_replaced_has_lost_no_record(
    dial: Dial, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    running = await start_agent()
    client = await dial.kafka(running.address)
    async with topic_made_again(running, client) as prober:
        if not is_there:
            before_it_asks(prober, monkeypatch, lambda: client.delete_topic(TOPIC))
        replaced = await prober.round_trip()
        assert replaced.outcome is Outcome.REPLACED, replaced
        assert f"the topic {TOPIC} was deleted while the probe wrote to it" in str(replaced.error)
        assert ok(await prober.round_trip()) and ok(await prober.round_trip())


@pytest.mark.parametrize("answers", [True, False])
async def test_a_lost_record_is_lost_where_no_agent_tells_of_the_topic(
    dial: Dial, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    async def refuse(*_: object) -> None:
        raise KafkaError(int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), "Metadata")

    async def refuse_or_stop() -> None:
        if answers:
            monkeypatch.setattr(KafkaClient, "topic", refuse)
        else:
            await running.agent.stop()

    running = await start_agent()
    async with topic_made_again(running, await dial.kafka(running.address)) as prober:
        before_it_asks(prober, monkeypatch, refuse_or_stop)
        lost = await prober.round_trip()
        assert lost.outcome is Outcome.LOST, lost


async def test_all_partitions_are_tested_through_one_agent(dial: Dial, start_agent: StartAgent) -> None:
    first = await start_agent()
    second = await start_agent(store=first.store, metadata=first.metadata)
    client = await dial.kafka(first.address)
    await until(lambda: len(first.agent._membership.agents) == 2)  # type: ignore[union-attr]
    # Chance decides who leads: one agent leads all of so many once in eight million times.
    await client.create_topic("wide", partitions=24)
    leaders = {each.leader_id for each in (await client.topic("wide")).partitions}
    assert len(leaders) == 2, "clients that follow the leaders would meet both"
    async with probing(f"{first.address},{second.address}", "wide") as prober:
        assert ok(await prober.round_trip())
    stored = [each.metric("produce_batches_total", outcome="stored") for each in (first, second)]
    assert stored == [24, 0]


async def test_an_agent_that_stops_sends_it_to_another(start_agent: StartAgent) -> None:
    first = await start_agent()
    second = await start_agent(store=first.store, metadata=first.metadata)
    async with probing(f"{first.address},{second.address}") as prober:
        assert ok(await prober.round_trip())
        stopping = asyncio.create_task(first.agent.stop())
        while not stopping.done():
            assert ok(await prober.round_trip())
            await asyncio.sleep(0.05)
        await stopping
        assert ok(await prober.round_trip())


# ---- as a process


class ProbeProcess:
    def __init__(self, bootstrap: str, log: Path, *words: str) -> None:
        self._log = log
        self.port = free_port()
        command = [sys.executable, "-m", "siltstone", "probe", "--bootstrap", bootstrap, "--every", "200ms"]
        command += ["--metrics-listen", f"127.0.0.1:{self.port}", "--set", "log.format=json", *words]
        with log.open("w") as lines:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=lines, text=True)

    def lines(self) -> list[dict[str, Any]]:
        told = self._log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in told if line.startswith("{") and line.endswith("}\n")]

    def until(self, holds: Callable[[dict[str, Any]], bool], *, after: int = 0) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((line for line in self.lines()[after:] if line["event"] == "probe" and holds(line)), None)

        wait_until(lambda: found() is not None or self.process.poll() is not None, 60)
        line = found()
        assert line is not None, self._log.read_text()
        return line

    def page(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def count(self, outcome: str) -> float:
        name = f'siltstone_probe_round_trips_total{{outcome="{outcome}"}} '
        [value] = [line.removeprefix(name) for line in self.page("/metrics")[1].splitlines() if line.startswith(name)]
        return float(value)

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sign)
        _, _ = self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def probes(tmp_path: Path) -> Iterator[Callable[..., ProbeProcess]]:
    started: list[ProbeProcess] = []

    def start(bootstrap: str, *words: str) -> ProbeProcess:
        started.append(ProbeProcess(bootstrap, tmp_path / f"probe-{len(started)}.log", *words))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def test_a_probe_fails_while_its_agent_is_down_and_goes_on_when_it_is_back(
    processes: Processes, probes: Callable[..., ProbeProcess]
) -> None:
    # given: a probe that starts before its agent
    agent = processes.add()
    probe = probes(agent.address)
    failed = probe.until(lambda line: line["ok"] == 0)
    assert (failed["outcome"], failed["level"], failed["topic"]) == ("failed", "warning", TOPIC)
    assert "round_trip_ms" not in failed and failed["elapsed_ms"] >= 0 and agent.address in failed["error"]
    assert probe.page("/healthz")[0] == 200 and probe.page("/readyz")[0] == 503
    agent.start()
    came_through = probe.until(lambda line: line["ok"] == 1)
    assert came_through["outcome"] == "ok" and came_through["level"] == "info" and came_through["round_trip_ms"] > 0
    assert "error" not in came_through
    wait_until(lambda: probe.page("/readyz")[0] == 200)
    # when it is killed
    seen = len(probe.lines())
    agent.kill()
    probe.until(lambda line: line["outcome"] == "failed", after=seen)
    assert "failed" in probe.page("/readyz")[1]
    # and started again
    processes.postgres.end_lease(agent.port)
    agent.start()
    seen = len(probe.lines())
    probe.until(lambda line: line["ok"] == 1, after=seen)
    assert probe.count("lost") == 0 and probe.count("ok") >= 2 and probe.count("failed") >= 2
    assert probe.stop() == 0
    assert {line["outcome"] for line in probe.lines() if line["event"] == "probe"} <= {"ok", "failed", "late"}


def test_a_frozen_agent_makes_it_late(processes: Processes, probes: Callable[..., ProbeProcess]) -> None:
    [agent] = processes.start(1)
    probe = probes(agent.address, "--timeout", "1s")
    probe.until(lambda line: line["ok"] == 1)
    agent.freeze()
    try:
        probe.until(lambda line: line["outcome"] == "late")
    finally:
        agent.thaw()
    assert probe.stop(signal.SIGINT) == 0


def test_a_probe_on_a_topic_of_others_ends_with_an_error(
    processes: Processes, probes: Callable[..., ProbeProcess]
) -> None:
    [agent] = processes.start(1)
    create_topic(agent.address, "orders", partitions=1)
    words = ["--bootstrap", agent.address, "--topic", "orders"]
    assert CliRunner().invoke(main, ["produce", *words[:2], "orders"], input="an order\n").exit_code == 0
    probe = probes(agent.address, "--topic", "orders")
    wait_until(lambda: probe.process.poll() is not None, 60)
    assert probe.stop() == 1
    refused = CliRunner().invoke(main, ["probe", "--once", *words])
    assert refused.exit_code == 1
    assert "error: the topic orders is not the probe's" in refused.output and "--topic" in refused.output
    # and: once, on its own
    done = CliRunner().invoke(main, ["probe", "--once", "--bootstrap", agent.address])
    assert done.exit_code == 0 and done.output.startswith(f"ok: a record was written to {TOPIC} and read back in ")
    down = CliRunner().invoke(main, ["probe", "--once", "--bootstrap", f"127.0.0.1:{free_port()}"])
    assert down.exit_code == 1 and "error: failed: " in down.output and "remedy: " in down.output


async def test_who_may_not_probe_is_told_the_rights_that_it_needs(start_agent: StartAgent) -> None:
    running = await start_agent(acl_mode="on", super_users="User:admin")
    says = (
        "`siltstone acls create --allow-principal User:NAME --operation Create --operation Write --operation Read"
        " --operation Describe --topic probes` gives what a probe needs"
    )
    for operation in (Operation.CREATE, Operation.WRITE, Operation.READ):
        async with probing(running.address, "probes") as prober:
            trip = await prober.round_trip()
        assert trip.outcome is Outcome.FAILED and trip.error is not None
        assert "TOPIC_AUTHORIZATION_FAILED" in trip.error.message and trip.error.remedy.startswith(says), trip.error
        await running.metadata.security.create_acls([allow(operation, "probes", to=ANONYMOUS)])
    # with all of them, of which Read implies Describe
    async with asyncio.timeout(30), probing(running.address, "probes") as prober:
        while (await prober.round_trip()).outcome is not Outcome.OK:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--every", "soon"], "--every: 'soon' is not a duration"),
        (["--timeout", "5"], "--timeout: '5' is not a duration"),
        (["--every", "0s"], "--every '0s' is out of range"),
        (["--timeout", "1h"], "--timeout '1h' is out of range"),
        (["--bootstrap", "http://somewhere"], "a bootstrap address is HOST:PORT"),
    ],
)
def test_wrong_usage_is_told(words: list[str], says: str) -> None:
    outcome = CliRunner().invoke(main, ["probe", *words])
    assert outcome.exit_code == 2, outcome.output
    assert says in outcome.output and "remedy: " in outcome.output
