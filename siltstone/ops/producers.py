"""Which producers wait for the agents, and what each should set. Pure: pages of agents in, lines out.

An agent's page (`/producers`, `agents/write/waits.py`) holds sums since its start. Two pages give the sums of the time
between them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from runtime.text import size_text
from siltstone.ops.cost.formulas import SECONDS_PER_MONTH
from siltstone.ops.cost.prices import PRICES

WAITING_SHARE = 0.5
"""A client that waits for more of its time is bound by the agents and not by itself."""
ROUNDS_MIN = 10
LARGE_BATCH_BYTES = 500_000
SUGGESTED_BATCH_BYTES = 1_000_000
"""A little below `max.message.bytes` (1 MiB): a file that carries half of it costs nothing of the budget."""
ONE_RECORD_BYTES = 4_096
"""Smaller rounds are a program that waits for each record, whatever its batch size."""

NUMBER_MAX = 1e18
"""Larger numbers, NaN and infinity are none that an agent has."""
_SUMS = ("rounds", "requests", "batches", "bytes", "wait_ms", "away_ms")
_RATES = ("early_per_second", "early_tokens", "put_ms", "commit_ms")

_SETTINGS: Sequence[tuple[str, str]] = (
    # the beginning of the library's own name, its settings
    ("aiokafka", "max_batch_size=1000000, linger_ms=50"),
    ("kafka-python", "batch_size=1000000, linger_ms=50"),
    ("sarama", "Producer.Flush.Bytes=1000000, Producer.Flush.Frequency=50ms"),
    ("kgo", "kgo.ProducerLinger(50ms), kgo.MaxProduceRequestsInflightPerBroker(5)"),
    ("kafka-go", "Writer.BatchBytes=1000000, Writer.BatchSize=10000, Writer.BatchTimeout=50ms"),
)
_KAFKA_SETTINGS = "batch.size=1000000, linger.ms=50"
"""Java, librdkafka and all that are built on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """One client over all agents and connections."""

    client_id: str
    software: str
    rounds: int
    requests: int
    batches: int
    bytes: int
    wait_ms: float
    away_ms: float

    @property
    def waiting_share(self) -> float:
        return self.wait_ms / (self.wait_ms + self.away_ms) if self.wait_ms else 0.0

    @property
    def round_bytes(self) -> float:
        return self.bytes / self.rounds

    @property
    def batch_bytes(self) -> float:
        return self.bytes / self.batches

    @property
    def waits(self) -> bool:
        return self.rounds >= ROUNDS_MIN and self.waiting_share >= WAITING_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """An agent's early seals."""

    agent: str
    per_second: float
    tokens: float
    put_ms: float
    commit_ms: float


def read_page(data: bytes) -> Mapping[str, Any]:
    """An agent's page, of which all that is read here has its type. Raises ValueError."""
    try:
        page = json.loads(data)
    except RecursionError:
        raise ValueError("its answer is nested too deeply") from None
    except ValueError as error:
        raise ValueError("its answer is not JSON") from error
    if not isinstance(page, dict):
        raise ValueError("its answer is no JSON object")
    fields = cast("dict[str, Any]", page)
    if not fields:
        return fields  # it has just started
    clients = fields.get("clients")
    if not isinstance(clients, list):
        raise ValueError("its answer has no list of clients")
    _check_numbers(fields, _RATES)
    for client in cast("list[Any]", clients):
        if not isinstance(client, dict):
            raise ValueError("its answer has a client that is no JSON object")
        of_client = cast("dict[str, Any]", client)
        if not all(isinstance(of_client.get(name), str) for name in ("client_id", "software")):
            raise ValueError("its answer has a client without client_id and software")
        _check_numbers(of_client, _SUMS)
    return fields


def _check_numbers(fields: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        value = fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= NUMBER_MAX:
            raise ValueError(f"its answer has no number {name}")


def producers_of(pages: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]] = ()) -> Sequence[Producer]:
    """The clients that had blocked rounds between the pages, by the bytes they sent; without `earlier`: ever."""
    sums: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for sign, each in ((1, pages), (-1, earlier)):
        for page in each:
            for client in cast("Sequence[Mapping[str, Any]]", page.get("clients", ())):
                of_client = sums[str(client["client_id"]), str(client["software"])]
                for name in _SUMS:
                    of_client[name] += sign * client[name]
    found = [
        Producer(
            client_id=client_id,
            software=software,
            rounds=int(of["rounds"]),
            requests=max(0, int(of["requests"])),
            batches=int(of["batches"]),
            bytes=max(0, int(of["bytes"])),
            wait_ms=max(0.0, of["wait_ms"]),
            away_ms=max(0.0, of["away_ms"]),
        )
        for (client_id, software), of in sums.items()
        # An agent that was started again, or that forgot a client, has smaller sums than before, of some or of all.
        if of["rounds"] >= 1 and of["batches"] >= 1
    ]
    return sorted(found, key=lambda each: (-each.bytes, each.client_id))


def budget_of(agent: str, page: Mapping[str, Any]) -> Budget:
    return Budget(
        agent=agent,
        per_second=page["early_per_second"],
        tokens=page["early_tokens"],
        put_ms=page["put_ms"],
        commit_ms=page["commit_ms"],
    )


def advice_for(producer: Producer) -> str:
    """The settings that the client should change, by its library's names; empty if it does not wait for the agents."""
    if not producer.waits:
        return ""
    if producer.round_bytes < ONE_RECORD_BYTES:
        return "it waits for each record: send many, then wait for all of them (flush)"
    if producer.batch_bytes >= LARGE_BATCH_BYTES:
        return "its batches are large already: more partitions, or a second producer, carry more at a time"
    times = SUGGESTED_BATCH_BYTES / producer.batch_bytes
    return f"{_settings_of(producer)}: up to {times:.0f} times as many bytes in a round"


def _settings_of(producer: Producer) -> str:
    # Libraries that do not tell their name mostly begin their default client.id with it.
    library = (producer.software or producer.client_id).lower()
    known = next((settings for name, settings in _SETTINGS if library.startswith(name)), None)
    # aiokafka alone tells no name, and is known by its default client.id only.
    unknown = _KAFKA_SETTINGS if producer.software else f"{_KAFKA_SETTINGS} (aiokafka: {_SETTINGS[0][1]})"
    return known or unknown


def round_text(producer: Producer) -> str:
    """For example "80 KiB in 5 batches"."""
    batches = producer.batches / producer.rounds
    plural = "batch" if round(batches) == 1 else "batches"
    return f"{size_text(int(producer.round_bytes))} in {batches:.0f} {plural}"


def budget_advice(budget: Budget) -> str:
    """Empty unless the budget of early seals is what clients wait for."""
    if budget.per_second == 0:
        return (
            f"{budget.agent} seals no file early (produce.early.per.second is 0, or merges lag behind): each round"
            " takes the linger"
        )
    if budget.tokens >= 1 or budget.put_ms + budget.commit_ms <= 0:
        return ""
    wanted = 1000 / (budget.put_ms + budget.commit_ms)
    if wanted <= budget.per_second:
        return ""
    usd = (wanted - budget.per_second) * SECONDS_PER_MONTH / 1000 * PRICES["s3.put.1000"].usd
    return (
        f"{budget.agent} has spent its budget of early seals: produce.early.per.second={wanted:.0f} instead of"
        f" {budget.per_second:.0f} would serve every round at once, for up to ${usd:,.0f} a month more in PUTs on S3"
    )
