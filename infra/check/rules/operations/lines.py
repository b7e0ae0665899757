"""Rules for the lines that alarms are made of: what each process writes into its log, and the filters that read it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, cast

from infra.check.rules.network import containers, settings_of
from infra.check.stack import Stack, Violation, blocks
from infra.check.terraform import Resource
from runtime.metrics.figures import figure_names
from runtime.settings.table import Settings
from runtime.settings.values import SettingsError

OF_THE_PROBE: Final = frozenset({"ok", "round_trip_ms", "elapsed_ms", "outcome", "topic", "sequence", "error"})
# process -> the events in its log that alarms are made of -> their fields
LINES: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "agent": {"figures": figure_names("agent")},
    "compactor": {"figures": figure_names("compactor")},
    "probe": {"figures": figure_names("probe"), "probe": OF_THE_PROBE},
}
TEXTS: Final = {"outcome": frozenset({"ok", "failed", "late", "lost", "replaced"})}
FIGURES: Final = "log.figures.interval.ms"
HEARD_LEVELS: Final = ("debug", "info")
TERM: Final = re.compile(r'\(?\s*\$\.(\w+)\s*=\s*(?:"(\w+)"|(\*))\s*\)?')
FIELD: Final = re.compile(r"^\$\.(\w+)$")
FORM: Final = '{ ($.event = "EVENT") && ($.FIELD = *) }'


class Watched(NamedTuple):
    """One metric that an alarm asks for."""

    query: str  # the name of it in the alarm's expression; "" for an alarm of one metric
    namespace: str
    name: str
    statistic: str
    period_s: int


Made: TypeAlias = dict[tuple[str, str], set[str]]
"""(namespace, name) of a metric -> `PROCESS FIELD` of the lines that it is made of, with what else they must say:
`probe elapsed_ms outcome=lost`.
"""


def process_of(container: Mapping[str, object]) -> str:
    """`agent`, `compactor`, `probe`, or "" for all else, such as a container that runs another program."""
    [command, *_] = [*cast("list[str]", container.get("command") or []), ""]
    return command if command in LINES and not container.get("entryPoint") else ""


def writers(stack: Stack) -> dict[str, set[str]]:
    """The processes that write into each log group, by its name."""
    found: dict[str, set[str]] = {}
    for _, container in containers(stack):
        options: dict[str, str] = cast("dict[str, Any]", container.get("logConfiguration") or {}).get("options", {})
        if process := process_of(container):
            found.setdefault(str(options.get("awslogs-group")), set()).add(process)
    return found


def terms_of(pattern: str) -> dict[str, str] | None:
    """Field -> the text that it must have, or `*`. None if the pattern is of another form than `FORM`."""
    text = pattern.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    found = [TERM.fullmatch(part.strip()) for part in text[1:-1].split("&&")]
    return {each[1]: each[2] or each[3] for each in found if each} if all(found) else None


def field_of(metric: Mapping[str, Any]) -> str:
    found = FIELD.match(str(metric.get("value")))
    return found[1] if found else ""


def sources(stack: Stack) -> Made:
    """All metrics that a filter makes."""
    writing = writers(stack)
    made: Made = {}
    for each in stack.of("aws_cloudwatch_log_metric_filter"):
        terms = terms_of(str(each.values.get("pattern"))) or {}
        more = "".join(f" {name}={text}" for name, text in terms.items() if name != "event" and text != "*")
        for metric in blocks(each.values, "metric_transformation"):
            processes = writing.get(str(each.values.get("log_group_name")), set())
            told = made.setdefault((str(metric.get("namespace")), str(metric.get("name"))), set())
            told |= {f"{process} {field_of(metric)}{more}" for process in processes}
    return made


def filters_read_what_is_written(stack: Stack) -> Iterator[Violation]:
    """Each filter asks for an event and a field that a process writes into the very log that it reads."""
    groups = {str(group.values.get("name")) for group in stack.of("aws_cloudwatch_log_group")}
    writing = writers(stack)
    for each in stack.of("aws_cloudwatch_log_metric_filter"):
        log, terms = str(each.values.get("log_group_name")), terms_of(str(each.values.get("pattern")))
        if log not in groups:
            yield Violation(each, "the filter reads a log that is not made here", "name one of the log groups")
        elif log not in writing:
            message = f"no agent, compactor or probe writes into {log}: no alarm of the filter's metric rings"
            yield Violation(each, message, "name the log of the process that has the figure")
        elif terms is None:
            yield Violation(each, "the filter's pattern cannot be judged", f"write it as {FORM}")
        elif "event" not in terms:
            message = "the filter takes lines of any event: its metric is mixed with other numbers"
            yield Violation(each, message, f"write the pattern as {FORM}")
        else:
            yield from of_terms(each, terms, sorted(writing[log]))


def of_terms(each: Resource, terms: dict[str, str], processes: list[str]) -> Iterator[Violation]:
    event, shown = terms["event"], " or ".join(processes)
    asked = {field_of(metric) for metric in blocks(each.values, "metric_transformation")}
    if any(terms.get(name) != "*" for name in asked):
        yield Violation(each, "the filter takes lines without its figure", f"write the pattern as {FORM}")
    known = frozenset[str]().union(*(LINES[process].get(event, frozenset()) for process in processes))
    unknown = [f"the field {name}" for name in sorted((terms.keys() | asked) - {"event", ""} - known)]
    unknown += [
        f"the {name} {text!r}" for name, text in terms.items() if name in TEXTS and text not in (*TEXTS[name], "*")
    ]
    if unknown:
        message = f"the {shown} writes no event {event} with {unknown[0]}: no alarm of the filter's metric rings"
        remedy = "name them as docs/operations/logs-and-traces.md does, and the log of the process that has them"
        yield Violation(each, message, remedy)


def alarms_have_their_figures(stack: Stack) -> Iterator[Violation]:
    """An alarm of Siltstone's own figures watches a metric that a filter makes."""
    made = sources(stack)
    for alarm in stack.of("aws_cloudwatch_metric_alarm"):
        for metric in watched(alarm):
            if not metric.namespace.startswith("AWS/") and (metric.namespace, metric.name) not in made:
                message = f"the alarm watches {metric.name} of {metric.namespace}, which nothing writes"
                yield Violation(alarm, message, "give it a metric filter")


def watched(alarm: Resource) -> Iterator[Watched]:
    values = alarm.values
    if values.get("metric_name"):
        statistic = values.get("statistic") or values.get("extended_statistic")
        yield Watched("", str(values.get("namespace")), values["metric_name"], str(statistic), seconds(values))
    for query in blocks(values, "metric_query"):
        for one in blocks(query, "metric"):
            named = str(query.get("id")), str(one.get("namespace")), str(one.get("metric_name"))
            yield Watched(*named, str(one.get("stat")), seconds(one))


def seconds(values: Mapping[str, Any]) -> int:
    return int(values.get("period") or 0)


def figures_come_in_time(stack: Stack) -> Iterator[Violation]:
    """Each process writes lines that filters can read, and as often as the alarms ask for them."""
    periods_s = asked_every_s(stack)
    for task, container in containers(stack):
        process, name = process_of(container), container.get("name")
        with suppress(SettingsError):  # another rule reports it
            if not process:
                continue
            settings = settings_of(container) or Settings()
            if settings.log_format != "json":
                yield Violation(task, f"no filter can read the log of container {name}", "set log.format to json")
            if settings.log_level not in HEARD_LEVELS:
                message = f"container {name} leaves the lines out of its log that alarms are made of"
                yield Violation(task, message, f"set log.level to info, not {settings.log_level}")
            every_s, asked_s = settings.log_figures_interval_ms / 1000, periods_s.get(process)
            if process != "probe" and not every_s:
                yield Violation(task, f"container {name} writes no figures into its log", f"set {FIGURES} to 60000")
            elif process != "probe" and asked_s is not None and every_s > asked_s:
                message = f"container {name} writes figures every {every_s:g} s, and an alarm asks every {asked_s} s"
                remedy = f"set {FIGURES} to {asked_s * 1000}, or alarms ring for nothing, or too late"
                yield Violation(task, message, remedy)


def asked_every_s(stack: Stack) -> dict[str, int]:
    """Process -> the shortest period of an alarm of its figures."""
    made = sources(stack)
    found: dict[str, int] = {}
    for alarm in stack.of("aws_cloudwatch_metric_alarm"):
        for metric in watched(alarm):
            for source in made.get((metric.namespace, metric.name), ()):
                process = source.split()[0]
                found[process] = min(found.get(process, metric.period_s), metric.period_s)
    return found
