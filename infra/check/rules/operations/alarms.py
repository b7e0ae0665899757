"""Rules for alarms: all trouble is told, by the metric that has it, beyond a sane threshold, and soon enough."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from infra.check.rules.data import container_definitions
from infra.check.rules.operations.lines import Made, Watched, process_of, sources, watched
from infra.check.stack import Stack, Violation, blocks
from infra.check.terraform import Resource

DAY_S: Final = 86_400
MIB: Final = 1 << 20
ABOVE: Final = "GreaterThanThreshold"
BELOW: Final = "LessThanThreshold"
CLUSTER: Final = "aws_ecs_cluster"
DATABASE: Final = "aws_db_instance"
PROBE: Final = "aws_ecs_service"
# What CloudWatch calls the resources that alarms are of.
NAMES: Final = (
    ("aws_db_instance", "identifier"),
    ("aws_lb", "arn_suffix"),
    ("aws_lb_target_group", "arn_suffix"),
    ("aws_cloudwatch_event_rule", "name"),
)
QUERY: Final = re.compile(r"[a-z]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Trouble that an alarm must tell of, and what makes an alarm do so."""

    what: str
    watches: Mapping[str, str]
    """Its metrics (`NAMESPACE METRIC` of AWS, or as `sources` names them) -> the statistic of each."""
    comparison: str = ABOVE
    least: float = 0
    most: float = 0
    """Thresholds outside of these tell it never, or all the time."""
    silence: bool = False
    """Whoever is in trouble may say nothing: no data counts as bad."""
    expression: str = ""
    """With the sources in place of the names of queries."""
    of: str = CLUSTER
    """It is told wherever there is a resource of this type."""


def gauge(what: str, source: str, most: float, *, least: float = 0, silence: bool = False) -> Trouble:
    """Trouble of one number: the largest that any of several processes tells counts."""
    return Trouble(what=what, watches={source: "Maximum"}, least=least, most=most, silence=silence)


def of_database(what: str, metric: str, comparison: str, least: float, most: float) -> Trouble:
    watches = {f"AWS/RDS {metric}": "Average"}
    return Trouble(what=what, watches=watches, comparison=comparison, least=least, most=most, of=DATABASE)


def of_produce(what: str) -> Trouble:
    """The share of batches that are lost: 0.1 % is what is promised of a month."""
    watches = {"agent produce_failed": "Sum", "agent produce_batches": "Sum"}
    expression = "IF(agent produce_batches > 0, agent produce_failed / agent produce_batches, 0)"
    return Trouble(what=what, watches=watches, least=0.001, most=0.05, expression=expression)


def not_started(what: str) -> Trouble:
    return Trouble(what=f"that {what} could not be started", watches={"AWS/Events FailedInvocations": "Sum"})


# By the end of an alarm's name.
TROUBLES: Final[Mapping[str, Trouble]] = {
    "no-compactor": Trouble(
        what="that no compactor works",
        watches={"compactor l0_oldest_s": "SampleCount"},
        comparison=BELOW,
        least=1,
        most=1,
        silence=True,
    ),
    "no-merge": Trouble(
        what="that no merge is done",
        watches={"compactor merges_done": "Sum", "agent live_l0_files": "Maximum"},
        expression="IF(FILL(compactor merges_done, 0) < 1 AND agent live_l0_files > 500, 1, 0)",
    ),
    "l0-backlog": gauge("that merging does not keep up", "compactor l0_oldest_s", 3600, least=60),
    "catalogue-old": gauge(
        "that the catalogue in the bucket is old", "compactor catalog_age_s", DAY_S, least=600, silence=True
    ),
    "password-old": gauge("that a password is old", "agent postgres_password_age_s", 730 * DAY_S, least=DAY_S),
    "password-old-compactor": gauge(
        "that the compactors' password is old", "compactor postgres_password_age_s", 730 * DAY_S, least=DAY_S
    ),
    "janitor-halted": gauge("that nothing is deleted any more", "compactor janitor_halted", 0),
    "erasure-overdue": gauge("that an erasure is late", "compactor erasures_overdue", 0),
    "produce-errors-fast": of_produce("that produce fails"),
    "produce-errors-slow": of_produce("that produce fails a little, for long"),
    "group-lag": gauge("that a group does not read", "compactor group_lag_s_max", 7 * DAY_S, least=1),
    "agents-healthy": Trouble(
        what="that agents are not ready",
        watches={"AWS/NetworkELB HealthyHostCount": "Minimum"},
        comparison=BELOW,
        least=1,
        most=1000,
        silence=True,
    ),
    "rollout-not-started": not_started("a migration"),
    "drill-not-started": not_started("a restore drill"),
    "metadata-cpu": of_database("that Postgres is short of processor time", "CPUUtilization", ABOVE, 50, 95),
    "metadata-storage": of_database("that Postgres is nearly full", "FreeStorageSpace", BELOW, 1024 * MIB, 1 << 44),
    "metadata-memory": of_database("that Postgres is short of memory", "FreeableMemory", BELOW, 64 * MIB, 1 << 40),
    "metadata-wraparound": of_database(
        "that vacuum does not keep up", "MaximumUsedTransactionIDs", ABOVE, 300_000_000, 1_800_000_000
    ),
    "metadata-queue": of_database("that the volume of Postgres is too slow", "DiskQueueDepth", ABOVE, 1, 128),
    "probe": Trouble(
        what="that no record of the probe comes back",
        watches={"probe ok": "Sum"},
        comparison=BELOW,
        least=1,
        most=1,
        silence=True,
        of=PROBE,
    ),
    "probe-lost": Trouble(
        what="that a record of the probe is lost", watches={"probe elapsed_ms outcome=lost": "SampleCount"}, of=PROBE
    ),
}


def trouble_of(alarm: Resource) -> Trouble | None:
    """The trouble that it is for: `-probe-lost` is another one than `-lost` would be."""
    name = str(alarm.values.get("alarm_name"))
    ending = max((each for each in TROUBLES if name.endswith(f"-{each}")), key=len, default="")
    return TROUBLES.get(ending)


def alarms_are_heard(stack: Stack) -> Iterator[Violation]:
    for alarm in stack.of("aws_cloudwatch_metric_alarm", "aws_cloudwatch_composite_alarm"):
        if not alarm.values.get("alarm_actions"):
            yield Violation(alarm, "nobody hears of the alarm", "give it alarm_actions: the topics of the operator")
        elif alarm.values.get("actions_enabled") is False:
            message = "nobody hears of the alarm: its actions are switched off"
            yield Violation(alarm, message, "leave actions_enabled out")


def trouble_is_told(stack: Stack) -> Iterator[Violation]:
    told = [trouble_of(alarm) for alarm in stack.of("aws_cloudwatch_metric_alarm")]
    for ending, trouble in TROUBLES.items():
        for one in probes(stack) if trouble.of == PROBE else stack.of(trouble.of):
            if trouble not in told:
                yield Violation(one, f"no alarm tells {trouble.what}", f"make an alarm whose name ends with {ending}")


def probes(stack: Stack) -> list[Resource]:
    """The services that run a probe."""
    tasks = {str(task.values.get("arn")): task for task in stack.of("aws_ecs_task_definition")}
    running = [(one, tasks.get(str(one.values.get("task_definition")))) for one in stack.of("aws_ecs_service")]
    return [
        service
        for service, task in running
        if task is not None and any(process_of(each) == "probe" for each in container_definitions(task))
    ]


def probes_run(stack: Stack) -> Iterator[Violation]:
    for service in probes(stack):
        if service.values.get("desired_count") == 0:
            message = "no probe runs: an outage that no process notices by itself is told by nobody"
            yield Violation(service, message, "set desired_count = 1")


def alarms_ring_when_they_should(stack: Stack) -> Iterator[Violation]:
    """An alarm with the name of some trouble tells of it: by threshold, time and silence."""
    yield from untold(stack, of_arguments)


def alarms_watch_what_tells(stack: Stack) -> Iterator[Violation]:
    """An alarm with the name of some trouble asks for the metric that has it, and for the right statistic of it."""
    made = sources(stack)
    yield from untold(stack, lambda alarm, trouble: of_metrics(alarm, trouble, made))


def untold(stack: Stack, differences: Callable[[Resource, Trouble], Iterator[tuple[str, str]]]) -> Iterator[Violation]:
    for alarm in stack.of("aws_cloudwatch_metric_alarm"):
        if trouble := trouble_of(alarm):
            for wrong, remedy in differences(alarm, trouble):
                yield Violation(alarm, f"the alarm does not tell {trouble.what}: {wrong}", remedy)


def alarms_are_of_what_is_here(stack: Stack) -> Iterator[Violation]:
    """An alarm of trouble names resources of this deployment; one of figures, which have no dimensions, names none."""
    here = {str(one.values.get(name)) for kind, name in NAMES for one in stack.of(kind)}
    for alarm in stack.of("aws_cloudwatch_metric_alarm"):
        of_aws, trouble = str(alarm.values.get("namespace")).startswith("AWS/"), trouble_of(alarm)
        dimensions: dict[str, str] = alarm.values.get("dimensions") or {}
        for name, value in dimensions.items() if trouble else ():
            if not of_aws or value not in here:
                message = f"the alarm watches the {name} {value}, of which nothing is told here"
                yield Violation(alarm, message, "let its dimensions be those of a resource of this deployment")


def of_arguments(alarm: Resource, trouble: Trouble) -> Iterator[tuple[str, str]]:
    """(what is wrong, its remedy)"""
    values = alarm.values
    if values.get("comparison_operator") != trouble.comparison:
        yield f"it rings by {values.get('comparison_operator')}", f"set comparison_operator to {trouble.comparison}"
    threshold = values.get("threshold")
    if threshold is None or not trouble.least <= float(threshold) <= trouble.most:
        remedy = f"set it to {trouble.least:,} at least, and {trouble.most:,} at most"
        yield f"its threshold {threshold} is out of all reason", remedy
    if trouble.silence and values.get("treat_missing_data") != "breaching":
        remedy = 'set treat_missing_data to "breaching": whoever is in trouble tells nothing'
        yield "silence counts as well-being", remedy
    period_s = max((metric.period_s for metric in watched(alarm)), default=0)
    within_s = period_s * int(values.get("evaluation_periods") or 1)
    if within_s > DAY_S:
        yield f"it rings after {within_s} s", "let period and evaluation_periods be a day together, at most"


def of_metrics(alarm: Resource, trouble: Trouble, made: Made) -> Iterator[tuple[str, str]]:
    named = {metric: source_of(metric, made) for metric in watched(alarm)}
    if "" in named.values():  # another rule reports the filter
        return
    if {*named.values()} != {*trouble.watches}:
        wanted = " and ".join(sorted(trouble.watches))
        yield f"it watches {' and '.join(sorted(named.values())) or 'nothing'}", f"let it watch {wanted}"
        return
    for metric, source in named.items():
        if metric.statistic != trouble.watches[source]:
            remedy = f"take {trouble.watches[source]}: the metric is told by several processes, and several times"
            yield f"it takes the {metric.statistic} of {source}", remedy
    if trouble.expression and trouble.expression not in expressions(alarm, named):
        yield "it computes something else", f"write the expression {trouble.expression}, with the names of the queries"


def source_of(metric: Watched, made: Made) -> str:
    """The metric as a table of troubles names it; "" if nothing writes it."""
    if metric.namespace.startswith("AWS/"):
        return f"{metric.namespace} {metric.name}"
    return " or ".join(sorted(made.get((metric.namespace, metric.name), ())))


def expressions(alarm: Resource, named: Mapping[Watched, str]) -> Iterator[str]:
    """The expressions of the alarm, with the sources in place of the names of queries."""
    source = {metric.query: of for metric, of in named.items()}
    for query in blocks(alarm.values, "metric_query"):
        yield QUERY.sub(lambda found: source.get(found[0], found[0]), str(query.get("expression")))
