"""`siltstone topics describe`: a topic as an agent knows it and, for a compacted one, the progress of compaction.

If `--data` names a `siltstone dev` that is stopped, there is no agent; then the metadata alone answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from metadata.configs.topic import resolve
from metadata.configs.values import LONG_MAX
from runtime.text import plural
from siltstone.cli.options.agent_options import acts, bootstrap_option, name_hints, running_bootstrap
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.options.system_options import SystemOptions, resolved, system_options
from siltstone.cli.topics.explain import Explained, print_states, read_explained
from siltstone.kafka.client import EARLIEST, LATEST, ConfigEntry, KafkaClient, KafkaError, connected
from siltstone.kafka.consuming import stable_offsets
from siltstone.kafka.held_back import FIND
from siltstone.ops.compaction.compact_now import configs_in_force
from siltstone.ops.compaction.evidence import is_compacted
from siltstone.ops.compaction.report import brief_lines, states_json, troubles_json
from siltstone.ops.hint_options import HintOptions, option
from siltstone.terminal.output import json_option, print_json, print_pairs, print_table
from siltstone.terminal.plain import say
from wire.error_codes import ErrorCode

SET_ON_TOPIC = "topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    partition: int
    agent: int | None
    """The agent that clients are sent to; None when no agent was asked."""
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    """Readers of committed records get nothing at or above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    topic_id: str
    partitions: Sequence[PartitionRow]
    configs: Sequence[ConfigEntry]

    @property
    def is_compacted(self) -> bool:
        return is_compacted({each.name: each.value or "" for each in self.configs if each.name == "cleanup.policy"})


@click.command("describe")
@click.argument("name", type=TOPIC)
@click.option("--all", "all_configs", is_flag=True, help="Also show configs that have no effect and are not set.")
@bootstrap_option
@system_options
@json_option
def describe_command(name: str, all_configs: bool, bootstrap: str, given: SystemOptions, as_json: bool) -> None:
    """Show the partitions, offsets and configs of topic NAME.

    With --data or --metadata, a compacted topic also shows the progress of compaction: the dirty ratio, the part that
    no pass has seen yet (the head), the last pass, and the partitions that are due.

    While an open transaction holds records back, a column shows the last stable offset, where committed records end.

    \b
    Examples:
      siltstone topics describe orders
      siltstone topics describe users --data ./siltstone-data
    """
    address = running_bootstrap(given.data, bootstrap)
    explained: Explained | None = None
    if given.data is not None or given.metadata_url:
        with resolved(given) as urls:
            described = None if address is None else asyncio.run(_ask(address, name, given.hints))
            explained = asyncio.run(read_explained(urls.metadata, name, given))
    else:
        described = asyncio.run(_ask(bootstrap, name, HintOptions(agents=option("bootstrap", bootstrap))))
    places = given.hints.places
    if described is None:
        if explained is None:
            raise TypeError("neither an agent nor the metadata was asked")
        described = _without_agent(explained)
        say(f"no agent runs on {given.data}: this answer is from the metadata", err=True)
    if as_json:
        _print_json(name, described, explained)
    else:
        _print(name, described, explained, all_configs=all_configs, places=places)


async def _ask(bootstrap: str, name: str, hints: HintOptions) -> Described:
    async with connected(bootstrap) as client:
        async with name_hints(client, name, hints):
            topic = await client.topic(name)
        numbers = sorted(partition.partition_index for partition in topic.partitions)
        starts = await client.list_offsets(name, numbers, EARLIEST)
        ends = await client.list_offsets(name, numbers, LATEST)
        stable = await stable_offsets(client, [(name, each) for each in numbers])
        leaders = {partition.partition_index: partition.leader_id for partition in topic.partitions}
        return Described(
            topic_id=str(topic.topic_id),
            partitions=[
                PartitionRow(
                    partition=each,
                    agent=leaders[each],
                    log_start_offset=starts[each],
                    high_watermark=ends[each],
                    # What was committed since the end was asked for is not held back.
                    last_stable_offset=min(stable[name, each], ends[each]),
                )
                for each in numbers
            ],
            configs=await _configs(client, name),
        )


async def _configs(client: KafkaClient, name: str) -> Sequence[ConfigEntry]:
    try:
        return await client.topic_configs(name)
    except KafkaError as error:
        if error.code != int(ErrorCode.TOPIC_AUTHORIZATION_FAILED):
            raise
        say("the configs are not shown: that needs the right DescribeConfigs on the topic", err=True)
        return ()


def _without_agent(explained: Explained) -> Described:
    overrides = explained.topic.configs
    in_force = configs_in_force(explained.topic, [state.view for state in explained.states])
    return Described(
        topic_id=str(explained.topic.topic_id),
        partitions=[
            PartitionRow(
                partition=each.view.partition,
                agent=None,
                log_start_offset=each.view.log_start_offset,
                high_watermark=each.view.high_watermark,
                last_stable_offset=each.view.last_stable_offset,
            )
            for each in explained.states
        ],
        configs=[
            ConfigEntry(
                name=config,
                value=value,
                source=SET_ON_TOPIC if config in overrides else "default broker" if config in in_force else "default",
            )
            for config, value in sorted(resolve(in_force).items())
        ],
    )


def _print_json(name: str, described: Described, explained: Explained | None) -> None:
    answer = {
        "name": name,
        "topic_id": described.topic_id,
        "partitions": [asdict(each) for each in described.partitions],
        "configs": [
            {"name": each.name, "value": each.value, "source": each.source, "acts": acts(each.name)}
            for each in described.configs
        ],
    }
    if described.is_compacted and explained is not None:
        answer["compaction"] = states_json(explained.states, explained.reasons)
    if explained is not None:
        answer["trouble"] = troubles_json(explained.reasons)
    print_json(answer)


def shown_value(config: str, value: str) -> str:
    """The value for people: "never" for a time that does not come, "no limit" for the largest number of anything else.

    Kafka's largest 64-bit number of ms is 292 million years; -1 is Kafka's word for no limit of retention.
    """
    if value == str(LONG_MAX):
        return f"never ({value})" if config.endswith(".ms") else f"no limit ({value})"
    if value == "-1" and config in ("retention.ms", "retention.bytes"):
        return f"{'never' if config.endswith('.ms') else 'no limit'} ({value})"
    return value


def _print(name: str, described: Described, explained: Explained | None, *, all_configs: bool, places: str) -> None:
    """Print the most important part last, so that it stays on the screen."""
    print_pairs({"topic": name, "id": described.topic_id, "partitions": str(len(described.partitions))})
    say()
    shown = [each for each in described.configs if all_configs or acts(each.name) or each.source == SET_ON_TOPIC]
    rows = [
        [each.name, shown_value(each.name, each.value or ""), each.source, "acts" if acts(each.name) else "no effect"]
        for each in sorted(shown, key=lambda each: (each.source != SET_ON_TOPIC, each.name))
    ]
    print_table(["config", "value", "from", "effect"], rows)
    left_out = len(described.configs) - len(shown)
    if left_out:
        say(f"and {plural(left_out, 'config')} that Siltstone stores but does not act on; --all shows all")
    say()
    columns = ["partition", "agent", "log start offset", "high watermark"]
    cells = [
        [
            str(each.partition),
            "-" if each.agent is None else str(each.agent),
            str(each.log_start_offset),
            str(each.high_watermark),
        ]
        for each in described.partitions
    ]
    held = [each for each in described.partitions if each.last_stable_offset < each.high_watermark]
    if held:
        columns.append("last stable offset")
        for row, each in zip(cells, described.partitions, strict=True):
            row.append(str(each.last_stable_offset))
    print_table(columns, cells, right=columns)
    if held:
        count = sum(each.high_watermark - each.last_stable_offset for each in held)
        say(
            f"{plural(count, 'offset')} of {plural(len(held), 'partition')}, from the last stable offset on, wait for"
            f" the end of open transactions; `{FIND}{places}` shows them"
        )
    if described.is_compacted:
        say()
        if explained is not None:
            print_states(explained)
        else:
            say("to see the progress of compaction, add --data DIR or --metadata URL")
    elif explained is not None and (lines := brief_lines(explained.reasons)):
        say()
        for line in lines:
            say(line)
