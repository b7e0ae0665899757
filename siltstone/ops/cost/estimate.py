"""`siltstone cost`: the monthly cost of a load, line by line, beside Kafka with three replicas. Pure.

The formulas are in `formulas.py`; prices are arguments, by default those of `prices.py`. Sizes of files, waits and
merges come from the settings. Processor times are those of docs/benchmarks.md, measured on two cores of a shared
virtual machine without TLS to the store; a vCPU of AWS differs. Nothing here was compared with a bill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agents.read.cache import BLOCK_BYTES
from agents.write.budget import PRICED_PER_SECOND
from compactor.merging.cursors import WINDOW_BYTES
from compactor.planning.options import plan_options
from runtime.errors import BadInputError
from runtime.settings.table import Settings
from runtime.text import plural
from siltstone.ops.capacity import figures
from siltstone.ops.capacity.limits import polls_per_s
from siltstone.ops.cost import formulas
from siltstone.ops.cost.kafka import kafka_lines, tiered_lines
from siltstone.ops.cost.l0_store import l0_store
from siltstone.ops.cost.prices import PRICES
from siltstone.ops.cost.storage import kept_lines
from storage.format.file_writer import PART_BYTES

MIB = 1 << 20
DEFAULTS = Settings()
PLAN = plan_options(DEFAULTS)

FETCH_MEMORY_MS_PER_MB = 0.52
FETCH_STORE_MS_PER_MB = 2.94
MERGE_MS_PER_MB = 2.0
BUSY_SHARE = 0.55
TASK_GIB = 3
POSTGRES_GIB = 100
SPARK_START_VCPU_S = 104
SPARK_UNIT_S = 0.086
SPARK_GIB_PER_VCPU = 4
INTERFACE_ENDPOINTS = 4
CATALOG_PUTS_PER_SECOND = 2 * 1000 / DEFAULTS.catalog_increment_interval_ms
"""Of increments while records come in, as `bench costs` counts them: a LIST, then a PUT."""
IDLE_LISTS_PER_HOUR = 8
"""Listings of an idle system with any number of agents, a page of 1,000 objects each: three levels of files, jobs, the
backup and its snapshots, begun uploads; `tests/integration/compactor/test_idle_requests.py` counts them."""

ASSUMPTIONS: Sequence[str] = (
    "prices: on demand, us-east-1, first tier, no discounts; none is fetched (--prices shows them, --price sets them)",
    "MiB/s are as stored, after the producers' compression, around the clock; a month is 730 hours",
    "PUTs: linger, size and as many early seals as produce.early.per.second allows; 0 of them is the least",
    "agents: processor time of docs/benchmarks.md at 55 % of a core (--agent-ms-per-mb: 1.6 to 7 by the clients'"
    " batches)",
    "reads of the tail: what another zone wrote is fetched once a zone, in blocks of 1 MiB; the rest is in memory",
    "merges: topics of cleanup.policy=delete; parts of 8 MiB, each a PUT; compacted topics are rewritten once a day",
    f"Postgres: {figures.COMMIT_FIXED_MS} ms and {figures.COMMIT_PARTITION_MS} ms a partition for a commit,"
    f" {figures.POLL_MS} ms each time an agent asks for the tail, {figures.BUSY_SHARE:.0%} of its vCPUs busy, Multi-AZ",
    "a second store: prices of S3 Express One Zone; traffic from other zones to it is not counted",
    "not counted: logs, metrics, VPN, backups beyond the free size, support, people",
    "Kafka: 3 replicas on gp3 filled to 70 %, 2.6 ms a MB and replica, consumers read from followers of their zone;"
    " controllers, and what volumes and hosts can carry, left out",
    "Kafka with tiered storage: one copy in S3 Standard, the last --kafka-local-hours on the volumes three times",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load, and the processes that carry it. Rates are in MiB/s as stored."""

    mib_s: float
    agents: int = 0
    """0: as many as the load needs."""
    compactors: int = 0
    zones: int = 3
    retention_days: float = 7
    consumers: int = 1
    """Groups that read all of it as it is written."""
    replay_share: float = 0
    """Bytes read from history per byte written."""
    partitions: int = 100
    linger_ms: float = DEFAULTS.produce_linger_ms
    early_per_second: float = PRICED_PER_SECOND
    storage_class: str = "standard"
    """The class to which a lifecycle rule moves `l2/`."""
    class_day: float | None = None
    """The age in days at which it moves them; None: the earliest that the class allows."""
    noncurrent_days: float = 0
    compacted_gib: float = 0
    """Latest values of compacted topics."""
    zone_aware: bool = True
    launch: str = "fargate"
    spark: bool = False
    agent_ms_per_mb: float = 3.3
    """Processor time of an agent per MB produced."""
    second_store: bool = False
    """L0 files lie in a bucket of S3 Express One Zone (`produce.store.url`)."""
    kafka_local_hours: float = 24
    """A Kafka with tiered storage also keeps so many hours on its volumes."""


@dataclass(frozen=True, slots=True)
class Line:
    item: str
    what: str
    usd: float


@dataclass(frozen=True, slots=True)
class Flow:
    """Rates, processes and cores that follow from a load, before prices."""

    load: Load
    files_per_s: float
    file_mib: float
    run_mib: float
    outputs_mib: Sequence[float]
    agent_cores: float
    agents_needed: int
    agents: int
    compactor_cores: float
    compactors: int
    postgres_cores: float
    postgres_vcpus: int
    spark_mib_per_s: float
    spark_jobs_per_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    flow: Flow
    lines: Sequence[Line]
    kafka: Sequence[Line]
    tiered: Sequence[Line]
    """Kafka with tiered storage."""
    prices: Mapping[str, float]

    @property
    def usd(self) -> float:
        return sum(line.usd for line in self.lines)

    @property
    def kafka_usd(self) -> float:
        return sum(line.usd for line in self.kafka)

    @property
    def tiered_usd(self) -> float:
        return sum(line.usd for line in self.tiered)


@dataclass(frozen=True, slots=True)
class EarlySeals:
    """PUTs of L0 a month: without early seals, as the estimate assumes them, and at most.

    At most, each agent seals as many early files as `produce.early.per.second` allows, and one more for each
    `produce.early.free.bytes` that it takes: clients that wait for small batches can cause that.
    """

    none_usd: float
    assumed_usd: float
    most_usd: float


@dataclass(frozen=True, slots=True)
class WithoutCompactor:
    """Minutes from the end of the last compactor until producers are delayed (`l0.stall.files`), and refused."""

    delayed_min: float
    refused_min: float


@dataclass(frozen=True, slots=True)
class LingerStep:
    """One row of the what-if."""

    linger_ms: float
    produce_ms_p50: float
    produce_ms_p99: float
    puts_usd: float
    puts_usd_least: float
    """Without early seals."""


def prices_with(changes: Mapping[str, float]) -> Mapping[str, float]:
    """The price table with some prices replaced. Raises BadInputError for a name that is not in it."""
    unknown = sorted(set(changes) - set(PRICES))
    if unknown:
        raise BadInputError(f"no price is called {unknown[0]!r}", remedy="`siltstone cost --prices` lists them")
    return {name: changes.get(name, price.usd) for name, price in PRICES.items()}


def cost_of(load: Load, prices: Mapping[str, float]) -> Cost:
    flow = flow_of(load)
    lines = [
        *_put_lines(flow, prices),
        *_get_lines(flow, prices),
        *_l0_byte_lines(flow, prices),
        *kept_lines(load, flow.run_mib, flow.outputs_mib, prices),
        *_traffic_lines(flow, prices),
        *_machine_lines(flow, prices),
    ]
    kafka, tiered = kafka_lines(load, prices), tiered_lines(load, prices)
    return Cost(flow, _lines(lines), _lines(kafka), _lines(tiered), prices)


def early_seals(load: Load, prices: Mapping[str, float]) -> EarlySeals:
    agents = flow_of(load).agents
    store = l0_store(prices, second=load.second_store)
    assumed = _files_per_second(load, agents)
    none = _files_per_second(replace(load, early_per_second=0), agents)
    # 0 switches early seals off, the free ones too
    free = load.mib_s / (DEFAULTS.produce_early_free_bytes / MIB) if load.early_per_second else 0.0
    most = none + agents * load.early_per_second + free
    none_usd, assumed_usd, most_usd = (_requests(rate, store.put_1000) for rate in (none, assumed, most))
    return EarlySeals(none_usd=none_usd, assumed_usd=assumed_usd, most_usd=most_usd)


def without_compactor(flow: Flow) -> WithoutCompactor:
    """By the files of the estimate. More than half of `l0.stall.files` live makes early seals rarer, so it takes
    somewhat longer."""
    files_per_min = flow.files_per_s * 60
    return WithoutCompactor(DEFAULTS.l0_stall_files / files_per_min, DEFAULTS.l0_refuse_files / files_per_min)


def flow_of(load: Load) -> Flow:
    """Sizes the cluster unless the load gives its size. Agents are rounded up to a multiple of the zones."""
    produced = load.mib_s * formulas.MB_PER_MIB
    cores = _agent_cores(load)
    needed = formulas.processes_needed(cores, busy_share=BUSY_SHARE, least=load.zones)
    needed = -(-needed // load.zones) * load.zones
    agents = load.agents or needed
    files = _files_per_second(load, agents)
    run_mib = formulas.l1_run_mib(
        load.mib_s,
        files_per_second=files,
        files_min=PLAN.l0_files_min,
        wait_s=PLAN.l0_wait_ms / 1000,
        wait_s_max=PLAN.l0_wait_ms_max / 1000,
        job_mib_max=PLAN.l0_job_bytes_max / MIB,
    )
    outputs = formulas.merge_outputs_mib(
        run_mib,
        mib_per_s=load.mib_s,
        l1_runs=PLAN.l1_runs_min,
        l2_runs=PLAN.l2_runs_min,
        plain_mib_max=PLAN.l2_plain_bytes_max / MIB,
        retention_s=load.retention_days * 86_400,
    )
    # Not the first output: it comes from L0 files, in merges far below the size at which Spark is used.
    on_spark = [size for size in outputs[1:] if load.spark and size >= PLAN.spark_bytes_min / MIB]
    daily_on_spark = load.spark and load.compacted_gib * 1024 >= PLAN.spark_bytes_min / MIB
    daily_mib_per_s = _daily_mib_per_second(load)
    spark_mib = load.mib_s * len(on_spark) + (daily_mib_per_s if daily_on_spark else 0)
    spark_jobs = sum(load.mib_s / size for size in on_spark) + (1 / 86_400 if daily_on_spark else 0)
    merged = load.mib_s * len(outputs) + daily_mib_per_s - spark_mib
    compactor_cores = formulas.compactor_cpu_cores(merged * formulas.MB_PER_MIB, merge_ms_per_mb=MERGE_MS_PER_MB)
    postgres = formulas.postgres_cpu_cores(
        commits_per_second=files,
        commit_ms=formulas.commit_server_ms(
            _partitions_per_file(load, agents),
            fixed_ms=figures.COMMIT_FIXED_MS,
            partition_ms=figures.COMMIT_PARTITION_MS,
        ),
        polls_per_second=agents * polls_per_s(files),
        poll_ms=figures.POLL_MS,
    )
    return Flow(
        load=load,
        files_per_s=files,
        file_mib=load.mib_s / files,
        run_mib=run_mib,
        outputs_mib=outputs,
        agent_cores=cores if produced else 0.0,
        agents_needed=needed,
        agents=agents,
        compactor_cores=compactor_cores,
        compactors=load.compactors or formulas.processes_needed(compactor_cores, busy_share=BUSY_SHARE, least=1),
        postgres_cores=postgres,
        postgres_vcpus=formulas.vcpus_of_class(postgres, busy_share=figures.BUSY_SHARE),
        spark_mib_per_s=spark_mib,
        spark_jobs_per_s=spark_jobs,
    )


def idle_requests_usd(prices: Mapping[str, float], *, lists_per_hour: float = IDLE_LISTS_PER_HOUR) -> float:
    """The requests of a month in which nobody writes and readers wait at the end of the log."""
    return _requests(lists_per_hour / 3600, prices["s3.put.1000"])


def linger_steps(
    load: Load, prices: Mapping[str, float], lingers_ms: Sequence[float] = (25, 50, 100, 250, 500, 1000)
) -> Sequence[LingerStep]:
    """Latency against the price of PUTs. A record waits half of the linger (p50) or all of it (p99), then for upload
    and commit."""
    agents = flow_of(load).agents
    store = l0_store(prices, second=load.second_store)
    steps: list[LingerStep] = []
    for linger_ms in lingers_ms:
        at = replace(load, linger_ms=linger_ms)
        usd = [
            formulas.requests_usd_per_month(_files_per_second(each, agents), usd_per_1000=store.put_1000)
            for each in (at, replace(at, early_per_second=0))
        ]
        p50_ms, p99_ms = linger_ms / 2 + store.upload_ms_p50, linger_ms + store.upload_ms_p99
        steps.append(LingerStep(linger_ms, p50_ms, p99_ms, usd[0], usd[1]))
    return steps


def _lines(lines: Sequence[tuple[str, str, float]]) -> Sequence[Line]:
    return [Line(*line) for line in lines]


def _agent_cores(load: Load) -> float:
    read = load.mib_s * load.consumers
    stored = formulas.tail_mib_from_store_per_second(load.mib_s, zones=load.zones, groups=load.consumers)
    stored = stored if load.zone_aware else 0.0
    return formulas.agent_cpu_cores(
        produced_mb_per_s=load.mib_s * formulas.MB_PER_MIB,
        from_memory_mb_per_s=max(0.0, read - stored) * formulas.MB_PER_MIB,
        from_store_mb_per_s=(stored + load.mib_s * load.replay_share) * formulas.MB_PER_MIB,
        produce_ms_per_mb=load.agent_ms_per_mb,
        memory_ms_per_mb=FETCH_MEMORY_MS_PER_MB,
        store_ms_per_mb=FETCH_STORE_MS_PER_MB,
    )


def _files_per_second(load: Load, agents: int) -> float:
    return formulas.l0_files_per_second(
        load.mib_s,
        agents=agents,
        linger_ms=load.linger_ms,
        file_mib=DEFAULTS.produce_file_bytes / MIB,
        early_mib=DEFAULTS.produce_early_bytes / MIB,
        early_per_second=load.early_per_second,
    )


def _partitions_per_file(load: Load, agents: int) -> float:
    return max(1.0, load.partitions * (load.zones if load.zone_aware else 1) / agents)


def _daily_mib_per_second(load: Load) -> float:
    return load.compacted_gib * 1024 / (PLAN.daily_interval_ms / 1000)


def _put_lines(flow: Flow, prices: Mapping[str, float]) -> Sequence[tuple[str, str, float]]:
    load, price = flow.load, prices["s3.put.1000"]
    merges = sum(
        formulas.merge_put_requests_per_second(
            load.mib_s, part_mib=PART_BYTES / MIB, object_mib=min(size, PLAN.output_bytes / MIB)
        )
        for size in flow.outputs_mib
    )
    daily = _daily_mib_per_second(load)
    merges += formulas.merge_put_requests_per_second(
        daily, part_mib=PART_BYTES / MIB, object_mib=PLAN.output_bytes / MIB
    )
    linger = f"{plural(flow.agents, 'agent')}, {load.linger_ms:g} ms, {flow.file_mib:.1f} MiB a file"
    return [
        (
            "PUT L0",
            f"{flow.files_per_s:,.1f}/s: {linger}",
            _requests(flow.files_per_s, l0_store(prices, second=load.second_store).put_1000),
        ),
        ("PUT merges", f"{merges:,.1f}/s: L1 and L2 in parts of 8 MiB", _requests(merges, price)),
        (
            "PUT catalogue",
            f"{CATALOG_PUTS_PER_SECOND:,.1f}/s: LIST and PUT of increments",
            _requests(CATALOG_PUTS_PER_SECOND, price),
        ),
    ]


def _get_lines(flow: Flow, prices: Mapping[str, float]) -> Sequence[tuple[str, str, float]]:
    load, price = flow.load, prices["s3.get.1000"]
    l0_price = l0_store(prices, second=load.second_store).get_1000
    window_mib, object_mib = WINDOW_BYTES / MIB, PLAN.output_bytes / MIB
    tail = 0.0
    if load.zone_aware:
        tail = formulas.tail_get_requests_per_second(
            formulas.Readers(agents=flow.agents, zones=load.zones, groups=load.consumers, partitions=load.partitions),
            files_per_second=flow.files_per_s,
            file_mib=flow.file_mib,
            block_mib=BLOCK_BYTES / MIB,
        )
    replay = load.mib_s * load.replay_share / (BLOCK_BYTES / MIB)
    # Leveling reads each L0 file with one GET. The last output is left out because no merge reads it again.
    leveling = flow.files_per_s
    merges = sum(
        formulas.merge_get_requests_per_second(
            load.mib_s, files_per_second=load.mib_s / min(size, object_mib), window_mib=window_mib
        )
        for size in flow.outputs_mib[:-1]
    )
    daily = _daily_mib_per_second(load)
    # A dedupe reads its inputs twice: it scans the keys, then rewrites the records.
    merges += 2 * formulas.merge_get_requests_per_second(
        daily, files_per_second=daily / object_mib, window_mib=window_mib
    )
    return [
        ("GET tail", f"{tail:,.1f}/s: what other zones wrote", _requests(tail, l0_price)),
        ("GET replays", f"{replay:,.1f}/s: history in blocks of 1 MiB", _requests(replay, price)),
        (
            "GET merges",
            f"{leveling + merges:,.1f}/s: a file, or {window_mib:.0f} MiB of it",
            _requests(leveling, l0_price) + _requests(merges, price),
        ),
    ]


def _l0_byte_lines(flow: Flow, prices: Mapping[str, float]) -> Sequence[tuple[str, str, float]]:
    """Bytes into and out of a second store, which S3 Standard does not charge."""
    load = flow.load
    if not load.second_store:
        return []
    store = l0_store(prices, second=True)
    tail_mib_s = 0.0
    if load.zone_aware:
        tail_mib_s = formulas.tail_mib_from_store_per_second(load.mib_s, zones=load.zones, groups=load.consumers)
    up_gib = formulas.gib_per_month(load.mib_s)
    down_gib = up_gib + formulas.gib_per_month(tail_mib_s)
    return [
        ("bytes to L0", f"{up_gib:,.0f} GiB into {store.name}", up_gib * store.upload_gib),
        ("bytes of L0", f"{down_gib:,.0f} GiB out of it, to merges and other zones", down_gib * store.retrieval_gib),
    ]


def _traffic_lines(flow: Flow, prices: Mapping[str, float]) -> Sequence[tuple[str, str, float]]:
    load = flow.load
    if load.zone_aware or load.zones == 1:
        why = "clients name their zone" if load.zones > 1 else "there is one zone"
        return [("between zones", f"none: {why}, and S3 costs nothing", 0.0)]
    crossing = formulas.cross_zone_mib_per_second(load.mib_s, zones=load.zones, groups=load.consumers)
    gib = formulas.gib_per_month(crossing)
    return [("between zones", f"{gib:,.0f} GiB: clients do not name their zone", gib * prices["zones.gib"])]


def _machine_lines(flow: Flow, prices: Mapping[str, float]) -> Sequence[tuple[str, str, float]]:
    load, hours = flow.load, formulas.HOURS_PER_MONTH
    task = _task_usd_per_month(load.launch, prices)
    busy = flow.agent_cores / flow.agents
    postgres = flow.postgres_vcpus * prices["rds.vcpu.hour"] * hours + POSTGRES_GIB * prices["rds.gp3.gib.month"]
    vcpu_s = formulas.SECONDS_PER_MONTH * formulas.spark_vcpu_seconds(
        flow.spark_mib_per_s,
        jobs=flow.spark_jobs_per_s,
        unit_mib=DEFAULTS.spark_unit_bytes / MIB,
        unit_s=SPARK_UNIT_S,
        merge_ms_per_mb=MERGE_MS_PER_MB,
        start_vcpu_s=SPARK_START_VCPU_S,
    )
    # Executors are paid for as long as they run, busy or not.
    vcpu_hours = vcpu_s / BUSY_SHARE / 3600
    endpoints = INTERFACE_ENDPOINTS * load.zones
    merging = min(1.0, flow.compactor_cores / flow.compactors)
    return [
        ("agents", f"{flow.agents} of 1 vCPU ({load.launch}), {busy:.0%} busy", flow.agents * task),
        ("compactors", f"{flow.compactors} of 1 vCPU, {merging:.0%} busy", flow.compactors * task),
        (
            "Postgres",
            f"{flow.postgres_vcpus} vCPU, Multi-AZ, {flow.files_per_s:,.1f} commits/s take {flow.postgres_cores:.2f}",
            2 * postgres,
        ),
        (
            "Spark",
            f"{vcpu_hours:,.1f} vCPU-hours, merges from 8 GiB" if load.spark else "none (--spark)",
            vcpu_hours * (prices["emr.vcpu.hour"] + SPARK_GIB_PER_VCPU * prices["emr.gib.hour"]),
        ),
        ("load balancer", "bootstrap alone", (prices["nlb.hour"] + prices["nlb.nlcu.hour"]) * hours),
        (
            "endpoints",
            f"{plural(INTERFACE_ENDPOINTS, 'service')}, {plural(load.zones, 'zone')}",
            endpoints * prices["endpoint.hour"] * hours,
        ),
    ]


def _task_usd_per_month(launch: str, prices: Mapping[str, float]) -> float:
    """One vCPU and 3 GiB: half of an EC2 host, or a Fargate task."""
    if launch == "ec2":
        return prices["ec2.host.hour"] / 2 * formulas.HOURS_PER_MONTH
    family = "fargate.arm" if launch == "fargate-arm" else "fargate"
    hourly = prices[f"{family}.vcpu.hour"] + TASK_GIB * prices[f"{family}.gib.hour"]
    return hourly * formulas.HOURS_PER_MONTH


def _requests(per_second: float, usd_per_1000: float) -> float:
    return formulas.requests_usd_per_month(per_second, usd_per_1000=usd_per_1000)
