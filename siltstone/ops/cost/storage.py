"""The cost of the bytes in the bucket: by level, by storage class, and of old versions. Pure.

Siltstone writes S3 Standard. A lifecycle rule of the bucket may move `l2/` to another class. Agents need not know:
objects of the three classes here are read like any other (of Glacier that is true of Instant Retrieval alone).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from compactor.planning.options import plan_options
from runtime.settings.table import Settings
from siltstone.ops.cost import formulas
from siltstone.ops.cost.l0_store import l0_store

PLAN = plan_options(Settings())
MIB = 1 << 20
GRACE_S = PLAN.grace_ms / 1000
TIERING_FREQUENT_DAYS, TIERING_INFREQUENT_DAYS = 30, 60

Row = tuple[str, str, float]


@dataclass(frozen=True, slots=True)
class StorageClass:
    """`from_day`: the age at which S3 moves objects there at the earliest. `least_days`: billed for at least this
    long."""

    prices: str
    from_day: float
    least_days: float


STORAGE_CLASSES: Mapping[str, StorageClass | None] = {
    "standard": None,
    "standard-ia": StorageClass("s3.standard.ia", 30, 30),
    "glacier-ir": StorageClass("s3.glacier.ir", 0, 90),
    "intelligent-tiering": StorageClass("s3.tiering", 0, 0),
}


class StoredLoad(Protocol):
    @property
    def mib_s(self) -> float: ...
    @property
    def retention_days(self) -> float: ...
    @property
    def replay_share(self) -> float: ...
    @property
    def storage_class(self) -> str: ...
    @property
    def class_day(self) -> float | None: ...
    @property
    def noncurrent_days(self) -> float: ...
    @property
    def compacted_gib(self) -> float: ...
    @property
    def second_store(self) -> bool: ...


def kept_lines(
    load: StoredLoad, run_mib: float, outputs_mib: Sequence[float], prices: Mapping[str, float]
) -> Sequence[Row]:
    price, retention_s = prices["s3.standard.gib.month"], load.retention_days * 86_400
    store = l0_store(prices, second=load.second_store)
    l0 = formulas.stored_l0_gib(load.mib_s, waits_s=PLAN.l0_wait_ms / 1000, grace_s=GRACE_S)
    l1 = formulas.stored_l1_gib(load.mib_s, run_mib=run_mib, l1_runs=PLAN.l1_runs_min, grace_s=GRACE_S)
    rewrites = max(0, len(outputs_mib) - 2)
    l2 = formulas.stored_l2_gib(load.mib_s, retention_s=retention_s, rewrites=rewrites, grace_s=GRACE_S)
    written = load.mib_s * formulas.write_amplification(outputs_mib)
    # The rewrite of a day leaves a second copy, dead for the grace. As an upper bound that is less than a hundredth.
    compacted = load.compacted_gib * (1 + GRACE_S / (PLAN.daily_interval_ms / 1000))
    old = formulas.noncurrent_gib(
        written + load.compacted_gib * 1024 / (PLAN.daily_interval_ms / 1000), noncurrent_days=load.noncurrent_days
    )
    rows: list[Row] = [
        ("stored L0", f"{l0:,.0f} GiB, {store.name}", l0 * store.gib_month),
        ("stored L1", f"{l1:,.0f} GiB", l1 * price),
        *_l2_rows(load, l2, object_gib=min(outputs_mib[-1], PLAN.output_bytes / MIB) / 1024, prices=prices),
    ]
    if load.compacted_gib:
        rows.append(("stored compacted", f"{compacted:,.0f} GiB", compacted * price))
    if load.noncurrent_days:
        rows.append(("old versions", f"{old:,.0f} GiB of {load.noncurrent_days:g} days", old * price))
    return rows


def class_day_note(load: StoredLoad) -> str:
    """A note if S3 does not move records to the class at the age that was asked for, else ""."""
    kind = STORAGE_CLASSES[load.storage_class]
    if kind is None or load.class_day is None or load.class_day >= kind.from_day:
        return ""
    return (
        f"--class-day {load.class_day:g}: S3 moves nothing to {load.storage_class} before day {kind.from_day:g}, so"
        " this estimate uses that day"
    )


def _l2_rows(load: StoredLoad, gib: float, *, object_gib: float, prices: Mapping[str, float]) -> Sequence[Row]:
    price = prices["s3.standard.gib.month"]
    kind = STORAGE_CLASSES[load.storage_class]
    if kind is None:
        return [("stored L2", f"{gib:,.0f} GiB, Standard", gib * price)]
    from_day = max(kind.from_day, load.class_day or 0)
    standard_days, class_days = formulas.class_days(load.retention_days, from_day=from_day, least_days=kind.least_days)
    a_day_gib = gib / load.retention_days
    rows: list[Row] = [
        ("stored L2", f"{a_day_gib * standard_days:,.0f} GiB, Standard", a_day_gib * standard_days * price)
    ]
    if not class_days:
        why = f"nothing: from day {from_day:g} on, and records are kept for {load.retention_days:g}"
        return [*rows, (f"  {load.storage_class}", why, 0.0)]
    billed = formulas.billed_gib(a_day_gib * class_days, object_gib=object_gib)
    objects_per_month = a_day_gib * formulas.DAYS_PER_MONTH / object_gib
    moved = objects_per_month / 1000 * prices[f"{kind.prices}.transition.1000"]
    if kind.prices == "s3.tiering":
        usd = tiering_usd_per_month(a_day_gib, days=class_days, objects_per_gib=1 / object_gib, prices=prices)
        return [*rows, ("  tiering", f"{billed:,.0f} GiB, if hardly any is read", usd + moved)]
    # Replays are assumed to be spread evenly over the records that are kept.
    read_gib = formulas.gib_per_month(load.mib_s * load.replay_share) * (1 - standard_days / load.retention_days)
    gets = read_gib * 1024 / 1000 * (prices[f"{kind.prices}.get.1000"] - prices["s3.get.1000"])
    name = f"  {load.storage_class}"
    return [
        *rows,
        (
            name,
            f"{billed:,.0f} GiB billed, {class_days:g} days each",
            billed * prices[f"{kind.prices}.gib.month"] + moved,
        ),
        (f"{name} reads", f"{read_gib:,.0f} GiB", read_gib * prices[f"{kind.prices}.retrieval.gib"] + gets),
    ]


def tiering_usd_per_month(
    a_day_gib: float, *, days: float, objects_per_gib: float, prices: Mapping[str, float]
) -> float:
    """Intelligent-Tiering of objects that are not read: 30 days frequent, 60 infrequent, then archive instant."""
    frequent = min(days, TIERING_FREQUENT_DAYS)
    infrequent = min(max(0.0, days - frequent), TIERING_INFREQUENT_DAYS)
    archive = max(0.0, days - frequent - infrequent)
    monitored = a_day_gib * days * objects_per_gib / 1000 * prices["s3.tiering.monitoring.1000"]
    return monitored + a_day_gib * (
        frequent * prices["s3.standard.gib.month"]
        + infrequent * prices["s3.tiering.infrequent.gib.month"]
        + archive * prices["s3.tiering.archive.gib.month"]
    )
