"""`make bench-fleet`: the whole fleet of agents is replaced by agents with other addresses, under clients of every kind
with stock settings.

The first table: of each kind a writer, a reader and a member work while the fleet is replaced, once and again; beside
it the same clients on three nodes of Kafka that are restarted one after another. The second: such clients sleep, that
is make no call into their library, while the fleet is replaced and the old agents end. Then they wake, knowing only
addresses of agents that are gone, and the load balancer that they were given at their start.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.loads.clients import create_topic
from bench.loads.load import progress
from bench.registry import Size
from bench.servers.fleet import Fleet
from bench.servers.kafka import Jars, find_jars
from bench.servers.kafka_cluster import NODES, KafkaCluster
from bench.steady.clients import CLIENTS, JAVA_3_REBOOTSTRAP, LIBRDKAFKA, SteadyClient, at_hand
from bench.steady.crowd import Crowd, Outcome
from bench.steady.log import ends
from bench.steady.programs.protocol import WRITER
from bench.steady.running import Steady
from bench.table import Cell, Column, Table
from runtime.settings.table import Settings

TOPIC, PARTITIONS = "fleet", 6
AGENTS = {Size.SMALL: 2, Size.FULL: 3}
ROUNDS = {Size.SMALL: 1, Size.FULL: 2}
BEFORE_S = {Size.SMALL: 3.0, Size.FULL: 15.0}
"""How long clients work before the first replacement."""
AFTER_S = {Size.SMALL: 15.0, Size.FULL: 60.0}
"""How long clients work after each replacement, once the old agents have ended."""
SLEEP_S = {Size.SMALL: 20.0, Size.FULL: 360.0}
"""The longer one is longer than clients keep what they know of the brokers (5 minutes)."""
FOUND_S = 60.0
"""A client that has not found the fleet again within this time is called stranded."""
STILL_S = 10.0
"""A client that has made no step for so long at the end of a span is called stranded."""
SMALL_NOTICE_MS = "5000"
AWAKE = "awake"
LOOK_S = 0.1

REPLACED_COLUMNS = (
    Column("client"),
    Column("role"),
    Column("longest pause", "s", 1),
    Column("at the end"),
    Column("Kafka's pause", "s", 1),
    Column("errors"),
    Column("Kafka's errors"),
    Column("rebalances"),
    Column("Kafka's rebalances"),
    Column("lost"),
    Column("doubled"),
)


@dataclass(frozen=True, slots=True)
class Sleep:
    """A way to sleep through a replacement."""

    title: str
    advertise: bool
    """Agents show the load balancer to clients as a broker."""
    silent: bool
    """Addresses of agents that have ended answer nothing; otherwise they refuse connections."""


SLEEPS = (
    Sleep("without", advertise=False, silent=False),
    Sleep("with", advertise=True, silent=False),
    Sleep("silent, without", advertise=False, silent=True),
    Sleep("silent, with", advertise=True, silent=True),
)
FoundS = Mapping[tuple[str, str], float | None]
"""By client and role, after how many seconds it found the fleet again; None: it is stranded."""


@dataclass(frozen=True, slots=True)
class Span:
    """A time of trouble, on the monotonic clock."""

    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """The clients of one system, in order, and their pauses and losses."""

    outcomes: Sequence[Outcome]
    spans: Sequence[Span]
    stop_s: Sequence[float] = ()
    """How long each stopping agent took."""


def run(size: Size) -> Iterator[Table]:
    wanted = [client for client in CLIENTS if client.always_there or size is Size.FULL]
    for absent in (client for client in wanted if client.absent()):
        progress(f"without {absent.name}: {absent.absent()}")
    clients = at_hand(wanted)
    with TemporaryDirectory(prefix="siltstone-steady-") as folder:
        logs = Path(folder)
        ours = _replaced(clients, size, logs)
        jars = find_jars() if size is Size.FULL else None
        kafkas = _restarted(clients, size, logs, jars) if jars is not None else None
        yield replaced_table(ours, kafkas, jars, size)
        slept_clients = [*clients, *at_hand([JAVA_3_REBOOTSTRAP] if size is Size.FULL else [])]
        slept = {sleep.title: _slept(slept_clients, size, logs, sleep) for sleep in sleeps_of(size)}
        yield slept_table(slept, size)


def sleeps_of(size: Size) -> Sequence[Sleep]:
    """Those that today's agents can offer."""
    offered = [sleep for sleep in SLEEPS if has_setting("advertised_bootstrap") or not sleep.advertise]
    return [sleep for sleep in offered if size is Size.FULL or not sleep.silent]


def has_setting(field: str) -> bool:
    return field in Settings.__dataclass_fields__


def _settings(size: Size) -> Mapping[str, str]:
    """The small size does not wait as long as agents serve on by default."""
    if size is Size.FULL or not has_setting("drain_notice_ms"):
        return {}
    return {"drain.notice.ms": SMALL_NOTICE_MS}


# ---- under load


def _replaced(clients: Sequence[SteadyClient], size: Size, logs: Path) -> Run:
    with Fleet(agents=AGENTS[size], settings=_settings(size)) as fleet:
        create_topic(fleet.bootstrap, TOPIC, PARTITIONS)
        progress("clients on a fleet of agents ...")
        with _crowd(clients, fleet.bootstrap, logs / "replaced") as crowd:
            time.sleep(BEFORE_S[size])
            spans: list[Span] = []
            stop_s: list[float] = []
            for number in range(ROUNDS[size]):
                progress(f"replacement {number + 1} ...")
                replaced = fleet.replace_all()
                stop_s += replaced.stop_s
                time.sleep(AFTER_S[size])
                spans.append(Span(replaced.began_s, time.monotonic()))
            outcomes = crowd.finish()
        for line in fleet.complaints()[:5]:
            progress(f"an agent says: {line}")
        return Run(outcomes, spans, stop_s)


def _restarted(clients: Sequence[SteadyClient], size: Size, logs: Path, jars: Jars) -> Run:
    with KafkaCluster(jars) as kafka:
        create_topic(kafka.bootstrap, TOPIC, PARTITIONS, replicas=NODES)
        progress("clients on three nodes of Kafka ...")
        with _crowd(clients, kafka.bootstrap, logs / "restarted") as crowd:
            time.sleep(BEFORE_S[size])
            spans: list[Span] = []
            for number in range(ROUNDS[size]):
                progress(f"rolling restart {number + 1} ...")
                began_s = time.monotonic()
                for node in kafka.nodes:
                    kafka.restart(node)
                time.sleep(AFTER_S[size])
                spans.append(Span(began_s, time.monotonic()))
            return Run(crowd.finish(), spans)


def replaced_table(ours: Run, kafkas: Run | None, jars: Jars | None, size: Size) -> Table:
    beside = {each.client.name: each for each in kafkas.outcomes} if kafkas is not None else {}
    rows: list[list[Cell]] = []
    for outcome in ours.outcomes:
        client = outcome.client
        other = beside.get(client.name)
        rows.append(
            [
                client.client.name,
                client.role,
                _pause_s(outcome, ours.spans),
                "stranded" if _pause_at_end_s(client, ours.spans[-1]) > STILL_S else "goes on",
                None if other is None or kafkas is None else _pause_s(other, kafkas.spans),
                len(client.errors),
                None if other is None else len(other.client.errors),
                _rebalances(outcome),
                None if other is None else _rebalances(other),
                outcome.lost,
                outcome.doubled,
            ]
        )
    spans = ", ".join(f"{span.until_s - span.since_s:.0f}" for span in ours.spans)
    took = f"{min(ours.stop_s):.1f} to {max(ours.stop_s):.1f}"
    kafka = "not at hand" if kafkas is None else f"{jars.version if jars else ''}, {NODES} nodes, one after another"
    return Table(
        "The whole fleet replaced under load",
        f"{AGENTS[size]} agents replaced {ROUNDS[size]} times, all addresses new; they ended {took} s after SIGTERM. "
        f"Pauses: from the SIGTERM on, within {spans} s. Stranded: no step in the last {STILL_S:.0f} s. "
        f"Kafka: {kafka}. Errors: what the library shows its application. Lost: acknowledged, but not in the log at "
        "that place; or in the log, but passed over by a reader. Doubled: in the log again; or seen again by a reader.",
        REPLACED_COLUMNS,
        rows,
    )


def _pause_s(outcome: Outcome, spans: Sequence[Span]) -> float:
    return max(outcome.client.longest_pause_s(span.since_s, span.until_s) for span in spans)


def _pause_at_end_s(client: Steady, span: Span) -> float:
    """The time from the client's last step within the span to the span's end."""
    return span.until_s - max((at_s for at_s, _ in client.account.steps if at_s <= span.until_s), default=span.since_s)


def _rebalances(outcome: Outcome) -> int | None:
    """Without the first, which is the start."""
    return outcome.client.rebalances - 1 if outcome.client.rebalances else None


# ---- asleep


def _slept(clients: Sequence[SteadyClient], size: Size, logs: Path, sleep: Sleep) -> FoundS:
    folder = logs / f"slept {sleep.title}"
    with Fleet(agents=AGENTS[size], settings=_settings(size), advertise=sleep.advertise, silent=sleep.silent) as fleet:
        create_topic(fleet.bootstrap, TOPIC, PARTITIONS)
        progress(f"clients that sleep for {SLEEP_S[size]:.0f} s or more, {sleep.title} ...")
        with _crowd(clients, fleet.bootstrap, folder) as crowd:
            sleepers = list(crowd.clients)
            slept_s = time.monotonic()
            for client in sleepers:
                client.sleep()
            fleet.replace_all()
            # A reader needs something to read.
            awake = crowd.add(LIBRDKAFKA, WRITER, AWAKE)
            awake.until_steps(1, FOUND_S)
            time.sleep(max(0.0, slept_s + SLEEP_S[size] - time.monotonic()))
            in_log = ends(fleet.bootstrap, TOPIC, PARTITIONS)
            woke_s = time.monotonic()
            for client in sleepers:
                client.wake()
            while time.monotonic() < woke_s + FOUND_S and None in _found_s(sleepers, in_log, woke_s).values():
                time.sleep(LOOK_S)
            return _found_s(sleepers, in_log, woke_s)


def _found_s(clients: Sequence[Steady], in_log: Mapping[int, int], woke_s: float) -> FoundS:
    found: dict[tuple[str, str], float | None] = {}
    for client in clients:
        at_s = client.account.first_beyond_s(in_log, woke_s)
        found[client.client.name, client.role] = None if at_s is None else at_s - woke_s
    return found


def slept_table(slept: Mapping[str, FoundS], size: Size) -> Table:
    """`slept`: by the titles of `SLEEPS`; what was not measured is left out."""
    keys = next(iter(slept.values()))
    rows: list[list[Cell]] = [
        [*key, *(_told(slept[sleep.title][key]) if sleep.title in slept else None for sleep in SLEEPS)] for key in keys
    ]
    return Table(
        "Clients that slept through a replacement",
        f"Asleep for {SLEEP_S[size]:.0f} s or more, while {AGENTS[size]} agents are replaced, all addresses new. The "
        "clients were given the load balancer's address alone. A time: seconds from the waking until the client wrote "
        f"or read a record that was not in the log before; stranded: not within {FOUND_S:.0f} s. With: agents show the "
        "load balancer to clients as a broker (`advertised.bootstrap`). Silent: old addresses answer nothing, as those "
        "of machines that are gone; else they refuse connections.",
        (Column("client"), Column("role"), *(Column(sleep.title) for sleep in SLEEPS)),
        rows,
    )


def _told(found_s: float | None) -> str:
    return "stranded" if found_s is None else f"found again after {found_s:.1f} s"


def _crowd(clients: Sequence[SteadyClient], bootstrap: str, folder: Path) -> Crowd:
    folder.mkdir()
    return Crowd(clients, bootstrap=bootstrap, topic=TOPIC, partitions=PARTITIONS, folder=folder)
