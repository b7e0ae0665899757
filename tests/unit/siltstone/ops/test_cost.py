"""The estimates of `siltstone cost`, compared with figures made by hand, figures measured, and figures published by
others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from compactor.planning.options import plan_options
from compactor.simulation.cluster import Load as SimulatedLoad
from compactor.simulation.run import Workers, simulate
from runtime.errors import BadInputError
from runtime.settings.table import Settings
from siltstone.cli import main
from siltstone.cli.cost import bar
from siltstone.ops.cost import formulas
from siltstone.ops.cost.estimate import (
    Cost,
    Load,
    cost_of,
    early_seals,
    flow_of,
    idle_requests_usd,
    linger_steps,
    prices_with,
    without_compactor,
)
from siltstone.ops.cost.prices import PRICES
from siltstone.ops.cost.storage import tiering_usd_per_month

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "operations" / "sizing.md"
MIB = 1 << 20
LIST = prices_with({})


def usd(estimated: Cost) -> Mapping[str, float]:
    return {line.item.strip(): line.usd for line in estimated.lines}


def files(mib_per_s: float, *, agents: int = 1, early: float = 20, linger_ms: float = 250) -> float:
    return formulas.l0_files_per_second(
        mib_per_s, agents=agents, linger_ms=linger_ms, file_mib=8, early_mib=0.25, early_per_second=early
    )


def test_files_are_made_by_the_linger_then_by_size() -> None:
    # 4 a second and agent; from 32 MiB/s per agent on, the files are full before that
    assert files(3, agents=3, early=0) == 12
    assert files(32, early=0) == 4
    assert files(100, early=0) == 12.5
    # $5 a million: 12 files/s for 2,628,000 s are 31.536 million
    assert formulas.requests_usd_per_month(12, usd_per_1000=0.005) == pytest.approx(157.68)


def test_early_seals_hold_a_quarter_of_a_mib_at_least() -> None:
    assert files(0.5) == 4  # never that much within the linger
    assert files(2) == 8  # 2 MiB/s are 8 files of 256 KiB
    assert files(10) == 24  # 4, and the 20 that the setting allows


@pytest.mark.parametrize(
    ("mb_per_s", "puts_per_gib"),
    [(5.0, 4_081), (13.0, 1_689), (71.8, 540), (110.9, 417), (226.6, 256), (251.3, 262), (514.5, 216)],
)
def test_the_files_of_the_benchmarks_are_those_of_the_formula_by_a_third(mb_per_s: float, puts_per_gib: float) -> None:
    mib_per_s = mb_per_s / formulas.MB_PER_MIB
    assert files(mib_per_s) == pytest.approx(mib_per_s / 1024 * puts_per_gib, rel=0.34)


def test_a_byte_is_written_as_often_as_the_planner_of_the_compactor_has_it_written() -> None:
    load = Load(mib_s=9, agents=3, zones=3, early_per_second=0)
    simulated = simulate(
        SimulatedLoad(agents=3, bytes_per_second=3 * MIB, compacted_share=0, partitions=100),
        hours=24,
        workers=Workers(count=8, bytes_per_second=64 * MIB),
        options=plan_options(Settings()),
        samples=4,
    )
    assert flow_of(load).outputs_mib == [90, 2_880, 16_384]
    assert formulas.write_amplification(flow_of(load).outputs_mib) == 4
    assert simulated.samples[-1].write_amplification == pytest.approx(4, abs=0.3)


def test_a_merge_puts_parts_of_8_mib_and_gets_windows_of_8_mib() -> None:
    # 1,024 MiB/s to objects of 1 GiB: 128 parts, one beginning, one end; and one GET a window beside one a file
    assert formulas.merge_put_requests_per_second(1_024, part_mib=8, object_mib=1_024) == 130
    assert formulas.merge_put_requests_per_second(4, part_mib=8, object_mib=2) == 2
    assert formulas.merge_get_requests_per_second(80, files_per_second=3, window_mib=8) == 13


def test_the_tail_is_fetched_once_by_each_zone_that_did_not_write_it() -> None:
    assert formulas.reading_zones(3, 0) == 0
    assert formulas.reading_zones(3, 1) == pytest.approx(1)
    assert formulas.reading_zones(3, 3) == pytest.approx(3 * (1 - 8 / 27))
    # one group, three agents in three zones, files of 8 MiB: of 12 files 2/3 are another zone's, 8 blocks each
    gets = formulas.tail_get_requests_per_second(
        formulas.Readers(agents=3, zones=3, groups=1, partitions=100), files_per_second=12, file_mib=8, block_mib=1
    )
    assert gets == pytest.approx(12 * 2 / 3 * 8)
    # 30 agents: ten of another zone share a file, of 10 partitions each, so that blocks are read by several
    gets = formulas.tail_get_requests_per_second(
        formulas.Readers(agents=30, zones=3, groups=1, partitions=100), files_per_second=12, file_mib=8, block_mib=1
    )
    assert gets == pytest.approx(12 * 2 / 3 * (10 + 8))


def test_clients_that_do_not_name_their_zone_pay_for_traffic_and_not_for_gets() -> None:
    load = Load(mib_s=1, consumers=2, zone_aware=False)
    lines = usd(cost_of(load, LIST))
    # 3 MiB/s, two thirds of them across: 2 MiB/s are 5,132.8 GiB a month at 2 cents
    assert lines["between zones"] == pytest.approx(2 * 2_628_000 / 1024 * 0.02)
    assert lines["GET tail"] == 0
    assert usd(cost_of(Load(mib_s=1, consumers=2), LIST))["between zones"] == 0


def test_storage_is_the_retention_and_a_sixteenth_and_what_is_dead_for_the_grace() -> None:
    # 1 MiB/s for 7 days are 590.625 GiB
    assert formulas.stored_l2_gib(1, retention_s=604_800, rewrites=0, grace_s=900) == pytest.approx(590.625 * 1.0625)
    assert formulas.stored_l2_gib(1, retention_s=604_800, rewrites=2, grace_s=512) == pytest.approx(
        590.625 * 1.0625 + 1
    )
    assert formulas.stored_l0_gib(1.024, waits_s=100, grace_s=900) == pytest.approx(1.0)
    assert formulas.stored_l1_gib(1, run_mib=32, l1_runs=32, grace_s=512) == pytest.approx(1.0)
    assert formulas.noncurrent_gib(1, noncurrent_days=1) == pytest.approx(84.375)


def test_a_storage_class_bills_its_least_days_and_takes_nothing_before_its_first() -> None:
    assert formulas.class_days(7, from_day=30, least_days=30) == (7, 0)
    assert formulas.class_days(45, from_day=30, least_days=30) == (30, 30)
    assert formulas.class_days(365, from_day=30, least_days=30) == (30, 335)
    # 1 KiB objects are billed as 128 KiB
    assert formulas.billed_gib(1, object_gib=1 / 1024 / 1024) == 128
    # a week in Glacier Instant Retrieval is billed as 90 days: dearer than a week in Standard
    week = Load(mib_s=1, retention_days=7)
    standard = usd(cost_of(week, LIST))["stored L2"]
    glacier = usd(cost_of(Load(mib_s=1, retention_days=7, storage_class="glacier-ir"), LIST))["glacier-ir"]
    assert glacier == pytest.approx(standard / 7 * 90 * 0.004 / 0.023, rel=0.01)
    assert glacier > standard
    # and Standard-IA never sees it
    assert usd(cost_of(Load(mib_s=1, storage_class="standard-ia"), LIST))["standard-ia"] == 0


def test_replays_from_a_class_pay_for_each_gib() -> None:
    load = Load(mib_s=1, retention_days=60, storage_class="standard-ia", replay_share=1)
    # half of the stored bytes are there: 1,283.2 GiB of 2,566.4 a month, at a cent, and 1,024 GETs per GiB
    expected = 2_628_000 / 1024 / 2 * (0.01 + 1.024 * (0.001 - 0.0004))
    assert usd(cost_of(load, LIST))["standard-ia reads"] == pytest.approx(expected)


def test_tiers_get_cheaper_after_30_and_90_days() -> None:
    # a GiB a day for 100 days: 30 at 0.023, 60 at 0.0125, 10 at 0.004, and 100 objects watched
    usd_per_month = tiering_usd_per_month(1, days=100, objects_per_gib=1, prices=LIST)
    assert usd_per_month == pytest.approx(0.69 + 0.75 + 0.04 + 0.00025)


def test_agents_are_sized_by_processor_time_and_rounded_up_to_the_zones() -> None:
    cores = formulas.agent_cpu_cores(
        produced_mb_per_s=100,
        from_memory_mb_per_s=100,
        from_store_mb_per_s=100,
        produce_ms_per_mb=3,
        memory_ms_per_mb=0.5,
        store_ms_per_mb=2.5,
    )
    assert cores == pytest.approx(0.6)
    assert formulas.processes_needed(cores, busy_share=0.5, least=1) == 2
    assert formulas.processes_needed(1.0, busy_share=0.5, least=1) == 2
    assert flow_of(Load(mib_s=300, zones=3, consumers=1)).agents % 3 == 0
    assert flow_of(Load(mib_s=300, agents=4)).agents == 4
    # $0.04048 for the vCPU and 3 GiB at $0.004445, 730 hours
    assert usd(cost_of(Load(mib_s=1), LIST))["agents"] == pytest.approx(3 * 730 * (0.04048 + 3 * 0.004445))


def test_a_commit_costs_what_was_measured() -> None:
    measured_ms = {10: 0.70, 100: 2.05, 1_000: 15.67}
    for partitions, expected in measured_ms.items():
        assert formulas.commit_server_ms(partitions, fixed_ms=0.5, partition_ms=0.0155) == pytest.approx(
            expected, rel=0.07
        )
    assert [formulas.vcpus_of_class(cores, busy_share=0.4) for cores in (0.1, 0.8, 0.9, 4)] == [2, 2, 4, 16]


def test_spark_takes_the_merges_that_are_large_enough() -> None:
    assert usd(cost_of(Load(mib_s=100), LIST))["Spark"] == 0
    flow = flow_of(Load(mib_s=100, spark=True))
    assert [round(size / 1024, 1) for size in flow.outputs_mib] == [0.2, 6.3, 16.0]
    assert flow.spark_mib_per_s == 100  # only the last of them
    assert flow.compactor_cores < flow_of(Load(mib_s=100)).compactor_cores
    # 8,192 MiB are 32 units: 104 + 32 * 0.5 + 8,589.934592 MB * 2 ms
    seconds = formulas.spark_vcpu_seconds(8_192, jobs=1, unit_mib=256, unit_s=0.5, merge_ms_per_mb=2, start_vcpu_s=104)
    assert seconds == pytest.approx(104 + 16 + 17.179869184)


def test_traffic_of_kafka_between_zones_is_what_warpstream_published() -> None:
    # 140 MiB/s in, 3 consumers: "$641 a day inter-AZ for tuned Kafka"
    crossing = formulas.kafka_cross_zone_mib_per_second(140, zones=3, replicas=3, groups=3, follower_fetching=True)
    assert formulas.gib_per_month(crossing) * 0.02 / formulas.DAYS_PER_MONTH == pytest.approx(641, rel=0.03)


def test_requests_are_of_the_order_that_warpstream_published() -> None:
    # the same load: "less than $40 a day" for requests to S3
    estimated = cost_of(Load(mib_s=140, consumers=3, early_per_second=0), LIST)
    daily = sum(line.usd for line in estimated.lines if line.item[:3] in ("PUT", "GET")) / formulas.DAYS_PER_MONTH
    assert 20 < daily < 60


def test_a_longer_linger_trades_latency_for_requests() -> None:
    first, *_, last = linger_steps(Load(mib_s=1, agents=3), LIST, (50, 250))
    assert (first.produce_ms_p50, last.produce_ms_p99) == (150, 500)
    assert first.puts_usd_least == pytest.approx(5 * last.puts_usd_least) == pytest.approx(788.4)


def test_an_idle_system_costs_less_than_five_dollars_a_month_in_requests() -> None:
    # eight LISTs an hour, 730 hours, at half a cent a thousand
    assert idle_requests_usd(LIST) == pytest.approx(8 * 730 * 0.005 / 1000)
    assert idle_requests_usd(LIST) < 5


def test_prices_are_replaced_by_name() -> None:
    assert prices_with({"s3.put.1000": 1})["s3.put.1000"] == 1
    with pytest.raises(BadInputError, match="no price is called"):
        prices_with({"s3.put": 1})
    assert all(price.usd > 0 and price.unit and price.source for price in PRICES.values())


@pytest.mark.parametrize("name", PRICES)
def test_no_price_of_the_table_is_there_for_nothing(name: str) -> None:
    loads = [
        Load(
            mib_s=2_000, retention_days=200, replay_share=1, consumers=2, storage_class=kind, launch=launch, spark=True
        )
        for kind in ("standard", "standard-ia", "glacier-ir", "intelligent-tiering")
        for launch in ("fargate", "fargate-arm", "ec2")
    ] + [Load(mib_s=1, zone_aware=False), Load(mib_s=1, second_store=True)]
    dearer = prices_with({name: LIST[name] * 2})
    assert any(
        cost_of(load, dearer).usd + cost_of(load, dearer).kafka_usd
        > cost_of(load, LIST).usd + cost_of(load, LIST).kafka_usd
        for load in loads
    )


def shown(*words: str) -> str:
    result = CliRunner().invoke(main, ["cost", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_prints_lines_kafka_the_linger_and_what_it_assumes() -> None:
    text = shown("--mib-s", "100", "--agents", "3", "--consumers", "3", "--replay-share", "0.1")
    for part in ("PUT L0", "stored L2", "Kafka, three replicas", "produce.linger.ms", "of Kafka", "not counted"):
        assert part in text
    assert "too few agents" not in text
    assert "too few agents: 3; the load needs" in shown("--mib-s", "1000", "--agents", "3")


def test_a_class_day_that_s3_does_not_allow_is_told() -> None:
    ia = ("--retention-days", "90", "--storage-class", "standard-ia")
    note = "--class-day 10: S3 moves nothing to standard-ia before day 30, so this estimate uses that day"
    assert note in shown(*ia, "--class-day", "10")
    assert json.loads(shown(*ia, "--class-day", "10", "--json"))["notes"] == [note]
    for words in (ia, (*ia, "--class-day", "30"), ("--storage-class", "glacier-ir", "--class-day", "0")):
        assert "class-day" not in shown(*words) and json.loads(shown(*words, "--json"))["notes"] == []


def test_one_of_a_thing_is_not_told_as_several() -> None:
    assert "1 agent, 250 ms" in (text := shown("--mib-s", "0.1", "--zones", "1")) and "1 zone" in text
    assert "1 agents" not in text and "1 zones" not in text


def test_the_json_has_the_same() -> None:
    answer: dict[str, Any] = json.loads(shown("--mib-s", "100", "--price", "s3.put.1000=0", "--json"))
    lines = {line["item"]: line["usd"] for line in answer["lines"]}
    assert lines["PUT L0"] == 0 and answer["prices"]["usd"]["s3.put.1000"] == 0
    assert answer["usd_per_month"] == pytest.approx(sum(lines.values()))
    assert answer["load"]["mib_s"] == 100 and len(answer["linger"]) == 6


def test_tiered_storage_keeps_a_day_three_times_and_everything_once() -> None:
    week = Load(mib_s=10, retention_days=7, replay_share=0.5)
    full, tiered = (
        {line.item: line for line in lines} for lines in (cost_of(week, LIST).kafka, cost_of(week, LIST).tiered)
    )
    assert tiered["volumes"].usd == pytest.approx(full["volumes"].usd / 7)
    assert tiered["tiered"].usd == pytest.approx(10 * 7 * 86_400 / 1024 * 0.023)
    # 10 MiB/s in parts of 25 MiB, and half as many bytes read again in pieces of 4
    requests_s = {"s3.put.1000": 10 / 25, "s3.get.1000": 5 / 4}
    assert tiered["requests"].usd == pytest.approx(sum(n * LIST[name] * 730 * 3.6 for name, n in requests_s.items()))
    for same in ("between zones", "brokers"):
        assert tiered[same] == full[same]
    # nothing is kept for longer than the topic keeps it
    hour = cost_of(Load(mib_s=10, retention_days=0.04), LIST)
    assert hour.tiered[0].usd == pytest.approx(hour.kafka[0].usd)


def test_early_seals_cost_at_most_what_their_budget_allows() -> None:
    load = Load(mib_s=100, agents=3)
    early = early_seals(load, LIST)
    of_a_put = 0.005 / 1000 * 730 * 3600
    assert early.none_usd == pytest.approx(12.5 * of_a_put)  # files of 8 MiB
    assert early.assumed_usd == usd(cost_of(load, LIST))["PUT L0"]
    # 20 a second for each agent, and one more for each half a MiB
    assert early.most_usd == pytest.approx((12.5 + 3 * 20 + 200) * of_a_put)
    off = early_seals(Load(mib_s=100, agents=3, early_per_second=0), LIST)
    assert off.none_usd == off.assumed_usd == off.most_usd == early.none_usd


def test_terraform_tells_for_how_long_producers_go_on_without_a_compactor() -> None:
    alone = without_compactor(cost_of(Load(mib_s=100), LIST).flow)
    assert alone.refused_min == pytest.approx(5 * alone.delayed_min)
    told = f"delayed after {alone.delayed_min:.0f} minutes and refused after {alone.refused_min:.0f}"
    for text in (ROOT / "infra" / "terraform" / "variables.tf", PAGE):
        assert f"t 100 MiB/s producers are {told}" in text.read_text(encoding="utf-8"), text


def test_the_prices_are_shown_with_their_sources() -> None:
    assert "s3.put.1000" in shown("--prices") and "not looked up" in shown("--prices")
    assert json.loads(shown("--prices", "--json"))["s3.put.1000"]["usd"] == 0.005


@pytest.mark.parametrize("text", ["s3.put.1000", "s3.put.1000=x", "s3.put.1000=-1", "s3.put.1000=nan"])
def test_a_price_that_is_none_is_refused(text: str) -> None:
    result = CliRunner().invoke(main, ["cost", "--price", text])
    assert result.exit_code == 2 and f"--price {text!r}" in result.stderr
    assert "\nremedy: write NAME=USD with USD 0 or more" in result.stderr and "siltstone cost --prices" in result.stderr


def test_the_example_of_the_page_about_sizing_is_what_the_command_prints() -> None:
    text = PAGE.read_text(encoding="utf-8")
    command, _, printed = text[text.index("$ siltstone cost ") :].partition("\n")
    lines = [line.rstrip() for line in shown(*command.split()[3:]).splitlines()]
    expected = printed[: printed.index("\n```")].splitlines()
    assert lines[: len(expected)] == expected


def test_the_command_of_the_page_with_prices_of_ones_own_runs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    [command] = re.findall(r"^```sh\n(siltstone cost .*)\n```$", text, re.MULTILINE)
    words = command.split()[2:]
    assert words.count("--price") == 3
    assert shown(*words) != shown("--mib-s", "100")


def test_a_bar_shows_what_is_more_than_nothing() -> None:
    assert [bar(share, width=2) for share in (0, 0.001, 0.5, 0.75, 1)] == ["", "▏", "█", "█▌", "██"]


# ---- a second store


def second(**changes: Any) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The bills of one load with one store and with two."""
    load = Load(**{"mib_s": 100, "agents": 3, "consumers": 3, "early_per_second": 0, **changes})
    return usd(cost_of(load, LIST)), usd(cost_of(replace(load, second_store=True), LIST))


def test_l0_files_in_a_second_store_have_the_prices_of_express_one_zone() -> None:
    one, two = second()
    assert two["PUT L0"] / one["PUT L0"] == pytest.approx(0.00113 / 0.005)
    assert two["GET tail"] / one["GET tail"] == pytest.approx(0.00003 / 0.0004)
    assert two["stored L0"] / one["stored L0"] == pytest.approx(0.11 / 0.023)
    gib = 100 * 2_628_000 / 1024
    assert two["bytes to L0"] == pytest.approx(gib * 0.0032)
    # Each byte is read by a merge, and in the zones that did not write it and where a group reads it.
    elsewhere = formulas.reading_zones(3, 3) * 2 / 3
    assert two["bytes of L0"] == pytest.approx(gib * (1 + elsewhere) * 0.0006)
    # Of merges only the GETs of L0 files have the other price.
    files_per_s = flow_of(Load(mib_s=100, agents=3, consumers=3, early_per_second=0)).files_per_s
    saved = formulas.requests_usd_per_month(files_per_s, usd_per_1000=0.0004 - 0.00003)
    assert one["GET merges"] - two["GET merges"] == pytest.approx(saved)


def test_the_first_store_costs_the_same_beside_a_second_one() -> None:
    one, two = second(replay_share=0.5)
    for item in ("PUT merges", "PUT catalogue", "GET replays", "stored L1", "stored L2"):
        assert one[item] == two[item]
    assert not {"bytes to L0", "bytes of L0"} & one.keys()


def test_where_clients_do_not_name_their_zone_merges_alone_read_from_the_second_store() -> None:
    _, two = second(zone_aware=False)
    assert two["bytes of L0"] == pytest.approx(100 * 2_628_000 / 1024 * 0.0006)


def test_the_linger_is_weighed_at_the_prices_and_the_pace_of_the_second_store() -> None:
    load = Load(mib_s=1, agents=3)
    [one, *_], [two, *_] = (linger_steps(each, LIST) for each in (load, replace(load, second_store=True)))
    assert two.puts_usd / one.puts_usd == pytest.approx(0.00113 / 0.005)
    assert (one.produce_ms_p50 - two.produce_ms_p50, one.produce_ms_p99 - two.produce_ms_p99) == (115, 230)


def test_the_command_says_that_one_zone_is_one_zone() -> None:
    for arguments in (["--second-store"], ["--second-store", "--json"]):
        said = CliRunner().invoke(main, ["cost", *arguments])
        assert said.exit_code == 0 and "lies in one zone" in " ".join(said.output.split())
    assert "one zone" not in CliRunner().invoke(main, ["cost"]).output


def test_increments_of_the_backup_are_a_listing_and_a_put_every_5_seconds() -> None:
    assert usd(cost_of(Load(mib_s=1), LIST))["PUT catalogue"] == pytest.approx(2 * 2_628_000 / 5 / 1000 * 0.005)
