"""One table, three spellings, and no unknown or impossible value passes."""

from __future__ import annotations

import importlib
import itertools
import re
import tomllib
from pathlib import Path

import pytest

from compactor.intervals import Intervals
from compactor.planning.spec import PlanOptions
from metadata.configs.broker import BROKER_CONFIGS
from runtime.settings import removed
from runtime.settings.addresses import is_loopback, parse_address
from runtime.settings.document import render_settings_markdown
from runtime.settings.loading import declarations, environment_name, load_settings, settings_environment
from runtime.settings.removed import REMOVED_SETTINGS
from runtime.settings.table import Settings
from runtime.settings.values import SettingsError

ROOT = Path(__file__).resolve().parents[3]


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "siltstone.toml"
    path.write_text(text)
    return path


def test_the_documented_names_and_defaults_hold() -> None:
    settings = load_settings(None, {}, {})
    assert settings == Settings()
    assert (settings.produce_linger_ms, settings.produce_file_bytes, settings.produce_early_bytes) == (
        250,
        8388608,
        262144,
    )
    assert (settings.produce_early_idle_ms, settings.produce_early_per_second) == (3, -1)
    assert (settings.l0_stall_files, settings.l0_refuse_files) == (20_000, 100_000)
    assert (settings.gc_grace_ms, settings.purge_deadline_ms) == (900_000, 604_800_000)
    assert (settings.job_limit_base_ms, settings.job_limit_ms_per_mib, settings.forced_interval_ms) == (
        60_000,
        250,
        900_000,
    )
    assert (settings.listen, settings.listeners, settings.insecure) == ("", (), False)


def test_a_setting_has_one_name_in_three_spellings(tmp_path: Path) -> None:
    assert environment_name("gc.grace.ms") == "SILTSTONE_GC_GRACE_MS"
    by_file = load_settings(toml(tmp_path, "gc.grace.ms = 700_000"), {}, {})
    by_environment = load_settings(None, {"SILTSTONE_GC_GRACE_MS": "700000"}, {})
    by_command_line = load_settings(None, {}, {"gc.grace.ms": "700000"})
    assert by_file == by_environment == by_command_line == Settings(gc_grace_ms=700_000)


def test_no_name_begins_another_so_that_toml_tables_can_hold_them_all() -> None:
    names = [name for name, _, _ in declarations()]
    assert not [(a, b) for a, b in itertools.permutations(names, 2) if b.startswith(f"{a}.")]


def test_dotted_names_tables_and_quoted_names_are_the_same_in_toml(tmp_path: Path) -> None:
    text = '[produce]\nlinger.ms = 10\nearly = { bytes = 1000 }\n["fetch.max"]\n"bytes" = 5_000\n'
    assert load_settings(toml(tmp_path, text), {}, {}) == Settings(
        produce_linger_ms=10, produce_early_bytes=1000, fetch_max_bytes=5_000
    )


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = toml(tmp_path, "num.partitions = 2\nconnections.max = 2\ntail.poll.ms = 2\n")
    environ = {"SILTSTONE_NUM_PARTITIONS": "3", "SILTSTONE_CONNECTIONS_MAX": "3"}
    settings = load_settings(file, environ, {"num.partitions": "4"})
    assert (settings.num_partitions, settings.connections_max, settings.tail_poll_ms) == (4, 3, 2)


def test_an_unknown_name_is_refused_wherever_it_stands_and_the_nearest_one_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'gc\.grase\.ms' \(in .*toml\) \(did you mean 'gc\.grace\.ms'"):
        load_settings(toml(tmp_path, "[gc]\ngrase.ms = 1"), {}, {})
    with pytest.raises(SettingsError, match=r"'SILTSTONE_GC_GRACE' .*did you mean 'SILTSTONE_GC_GRACE_MS'"):
        load_settings(None, {"SILTSTONE_GC_GRACE": "1"}, {})
    with pytest.raises(SettingsError, match=r"'produce\.linger' .*did you mean 'produce\.linger\.ms'"):
        load_settings(None, {}, {"produce.linger": "1"})
    with pytest.raises(SettingsError, match=r"'zzz'.*docs/settings\.md"):
        load_settings(None, {}, {"zzz": "1"})


@pytest.mark.parametrize("name", ["produce.foo", "retention.ms", "gc.ms", "produce.acks"])
def test_a_name_that_is_like_no_other_is_not_taken_for_one(name: str) -> None:
    for environ, overrides in (({}, {name: "1"}), ({environment_name(name): "1"}, {})):
        with pytest.raises(SettingsError) as refused:
            load_settings(None, environ, overrides)
        assert refused.value.remedy == "docs/settings.md lists them all"


def test_variables_of_others_and_of_the_command_line_are_left_alone() -> None:
    assert (
        load_settings(None, {"PATH": "/bin", "SILTSTONE_TRACEBACK": "1", "SILTSTONE_BOOTSTRAP": "x"}, {}) == Settings()
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("connections.max", "many", "connections.max must be a whole number, not 'many'"),
        ("connections.max", "1.5", "connections.max must be a whole number"),
        ("connections.max", "", "connections.max must be a whole number"),
        ("connections.max", "9" * 30, "connections.max must be a whole number"),
        ("connections.max", "0", "connections.max must be at least 1, not 0"),
        ("gc.grace.ms", "-5", "gc.grace.ms must be at least 1 ms, not -5"),
        ("socket.request.max.bytes", "4294967296", "socket.request.max.bytes must be at most 2147483647 bytes"),
        ("insecure", "yes", "insecure must be true or false, not 'yes'"),
        ("log.level", "warn", "log.level must be one of debug, info, warning, error, not 'warn'"),
        ("listen", "9092", "listen must be HOST:PORT, not '9092'"),
        ("listen", "127.0.0.1:70000", "listen must be HOST:PORT"),
        ("agent.zone", "a,b", "agent.zone may not hold"),
        ("advertised.host", "host:9092", "advertised.host must be a host"),
        ("advertised.host", "a b", "advertised.host must be a host"),
        (
            "advertised.bootstrap",
            "kafka.example.com",
            "advertised.bootstrap must be HOST:PORT, not 'kafka.example.com'",
        ),
        ("advertised.bootstrap", "kafka.example.com:0", "advertised.bootstrap must have the port"),
        ("advertised.bootstrap", "a:1,b:2", "advertised.bootstrap must be HOST:PORT"),
    ],
)
def test_an_impossible_value_is_refused_by_name(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said.replace("(", r"\(")):
        load_settings(None, {}, {name: value})


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("produce.linger.ms", "250ms", "from 0 to 60000 (in ms, without a unit behind it)"),
        ("produce.linger.ms", "60001", "from 0 to 60000 (in ms, without a unit behind it)"),
        ("num.partitions", "0", "from 1 to 100000"),
        ("gc.grace.ms", "0", "from 1 (in ms, without a unit behind it)"),
        ("insecure", "yes", "as one of true, false"),
        ("log.format", "xml", "as one of text, json"),
    ],
)
def test_the_remedy_for_an_impossible_value_names_what_is_allowed(name: str, value: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(None, {}, {name: value})
    assert refused.value.remedy.startswith(f"write {name} as ") and refused.value.remedy.endswith(remedy)


@pytest.mark.parametrize("memory", ["memory://", "memory:///", "MEMORY://"])
def test_memory_beside_a_place_that_lasts_is_refused(memory: str) -> None:
    for metadata_url, object_store_url in ((memory, "file:///s"), ("postgresql://u@h/db", memory)):
        with pytest.raises(SettingsError, match="is memory://, and the other is not") as refused:
            Settings(metadata_url=metadata_url, object_store_url=object_store_url)
        assert "both object.store.url and metadata.url" in refused.value.remedy
    Settings(metadata_url="memory://", object_store_url=memory)
    Settings(object_store_url=memory)  # the other is not named yet


def test_the_example_of_how_to_set_something_is_a_setting() -> None:
    known = {name for name, _, _ in declarations()}
    intro = render_settings_markdown().partition("## ")[0]
    examples = set(
        re.findall(r"--set ([a-z.]+)=", intro + (ROOT / "siltstone/cli/options/setting_options.py").read_text())
    )
    examples |= set(
        re.findall(r"for example ([a-z.]+)=", (ROOT / "siltstone/cli/options/setting_options.py").read_text())
    )
    assert examples and examples <= known


def test_a_refused_value_says_where_it_stands(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"\(in SILTSTONE_GC_GRACE_MS\)"):
        load_settings(None, {"SILTSTONE_GC_GRACE_MS": "soon"}, {})
    with pytest.raises(SettingsError, match=r"\(in .*siltstone\.toml\)"):
        load_settings(toml(tmp_path, "gc.grace.ms = 1.5"), {}, {})


def test_a_toml_value_of_another_type_is_refused(tmp_path: Path) -> None:
    for text in ("gc.grace.ms = true", "insecure = 1", "listen = 9092", "listen = ['a:1']", "gc = 5"):
        with pytest.raises(SettingsError):
            load_settings(toml(tmp_path, text), {}, {})


def test_a_file_that_is_absent_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the settings file .*absent\.toml") as absent:
        load_settings(tmp_path / "absent.toml", {}, {})
    assert absent.value.remedy == "correct the path of --config, or give this user the right to read the file"
    with pytest.raises(SettingsError, match=r"is not TOML"):
        load_settings(toml(tmp_path, "gc.grace.ms = "), {}, {})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"produce_early_bytes": 2000, "produce_file_bytes": 1000}, r"produce\.early\.bytes \(2000\) may not exceed"),
        ({"produce_file_bytes": 100_000_000}, r"produce\.file\.bytes .* produce\.buffer\.bytes\.max"),
        ({"message_max_bytes": 200_000_000}, r"message\.max\.bytes .* socket\.request\.max\.bytes"),
        ({"request_bytes_max": 1_000_000}, r"socket\.request\.max\.bytes .* request\.bytes\.max"),
        ({"l0_stall_files": 10, "l0_refuse_files": 5}, r"l0\.stall\.files .* l0\.refuse\.files"),
        ({"gc_grace_ms": 4_000_000}, r"gc\.grace\.ms \(4000000\) may not exceed orphan\.age\.ms"),
        ({"gc_grace_ms": 300}, r"tail\.poll\.ms \(100\) may be at most 1/4 of gc\.grace\.ms \(300\)"),
    ],
)
def test_two_values_that_cannot_be_together_are_refused(values: dict[str, int], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Settings(**values)  # type: ignore[arg-type]


def test_zero_disables_the_write_stall() -> None:
    assert Settings(l0_stall_files=10, l0_refuse_files=0).l0_refuse_files == 0


@pytest.mark.parametrize("name", ["listen", "metrics.listen"])
@pytest.mark.parametrize("address", ["10.0.0.1:9092", "[2001:db8::1]:9092", "example.com:9092"])
def test_an_address_beyond_loopback_is_refused_without_insecure(name: str, address: str) -> None:
    with pytest.raises(SettingsError, match="can be reached from other machines"):
        load_settings(None, {}, {name: address})
    flags = {"listen": "insecure", "metrics.listen": "metrics.insecure"}
    load_settings(None, {}, {name: address, flags.pop(name): "true"})
    with pytest.raises(SettingsError, match=rf"{name} .* can be reached from other machines"):
        load_settings(None, {}, {name: address, flags.popitem()[1]: "true"})  # the flag of the other


def test_a_wildcard_address_needs_a_host_to_tell_clients() -> None:
    with pytest.raises(SettingsError, match=r"advertised\.host"):
        load_settings(None, {}, {"listen": "0.0.0.0:9092", "insecure": "true"})
    load_settings(None, {}, {"listen": "0.0.0.0:9092", "insecure": "true", "advertised.host": "silt.example"})


def test_addresses_are_read_with_ipv6_in_brackets() -> None:
    assert parse_address("localhost:1") == ("localhost", 1)
    assert parse_address("[::1]:9092") == ("::1", 9092)
    for bad in ("::1:9092", "host:", ":1", "host", "a b:1", "http://host:1"):
        with pytest.raises(SettingsError):
            parse_address(bad)
    assert [is_loopback(host) for host in ("127.0.0.9", "::1", "localhost", "0.0.0.0", "localhost.example")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_a_password_in_the_metadata_url_is_never_shown() -> None:
    settings = Settings(metadata_url="postgresql://u:hunter2@h/db")
    assert "hunter2" not in repr(settings)


def test_a_zone_is_served_on_loopback_by_agents_that_have_one() -> None:
    assert Settings(agent_zone="a", zone_listen="127.0.0.1:0").zone_listen == "127.0.0.1:0"
    with pytest.raises(SettingsError, match=r"zone\.listen 0\.0\.0\.0:7000 can be reached") as refused:
        Settings(agent_zone="a", zone_listen="0.0.0.0:7000", insecure=True)
    assert refused.value.remedy is not None and "zone.tls.ca.file" in refused.value.remedy
    files = {f"zone_tls_{part}_file": f"{part}.pem" for part in ("cert", "key", "ca")}
    assert Settings(agent_zone="a", zone_listen="0.0.0.0:7000", **files).zone_tls_ca_file == "ca.pem"  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"zone\.tls\.ca\.file is not set"):
        Settings(agent_zone="a", zone_listen="127.0.0.1:0", zone_tls_cert_file="c.pem", zone_tls_key_file="k.pem")
    with pytest.raises(SettingsError, match=r"agent\.zone is empty"):
        Settings(zone_listen="127.0.0.1:0")
    with pytest.raises(SettingsError, match=r"zone\.listen must be HOST:PORT"):
        Settings(agent_zone="a", zone_listen="7000")


def test_metrics_beyond_loopback_want_certificates_of_both_sides() -> None:
    files = {f"metrics_tls_{part}_file": f"{part}.pem" for part in ("cert", "key", "ca")}
    Settings(metrics_listen="0.0.0.0:9644", **files)  # type: ignore[arg-type]
    files.pop("metrics_tls_ca_file")
    Settings(metrics_listen="127.0.0.1:9644", **files)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"metrics\.listen .* clients are not authenticated") as refused:
        Settings(metrics_listen="0.0.0.0:9644", **files)  # type: ignore[arg-type]
    assert "metrics.tls.ca.file" in refused.value.remedy and "metrics.insecure" in refused.value.remedy
    with pytest.raises(SettingsError, match=r"metrics\.tls\.key\.file is not set"):
        Settings(metrics_tls_cert_file="cert.pem")


def test_settings_survive_the_way_through_the_environment() -> None:
    settings = Settings(insecure=True, listen="[::]:0", advertised_host="h", metadata_url="memory://", num_partitions=7)
    assert load_settings(None, settings_environment(settings), {}) == settings


def test_docs_settings_md_is_what_the_table_says() -> None:
    command = (
        "from pathlib import Path; from runtime.settings.document import render_settings_markdown as render;"
        " Path('docs/settings.md').write_text(render())"
    )
    assert (ROOT / "docs" / "settings.md").read_text() == render_settings_markdown(), f'run python -c "{command}"'


# ---- names of earlier releases


def test_a_removed_name_is_taken_with_one_warning_from_file_environment_and_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removed, "_warned", set[str]())
    file = toml(tmp_path, "[janitor]\ninterval.ms = 5\n[read]\nconcurrency = 'many'\n")
    environ = {"SILTSTONE_COMPACTION_L1_RUNS_MIN": "7", "SILTSTONE_READ_CONCURRENCY": "3"}
    # given: three places, one name in two of them, and a value that was never allowed
    for _ in range(2):
        assert load_settings(file, environ, {"compaction.dead.percent": "9"}) == Settings()
    # then each name is reported once, with the constant that replaces it
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[3] for line in lines] == [
        "janitor.interval.ms", "read.concurrency", "compaction.l1.runs.min", "compaction.dead.percent",
    ]  # fmt: skip
    assert all(line.startswith("warning: the setting ") and "has no effect since release" in line for line in lines)
    assert "in SILTSTONE_COMPACTION_L1_RUNS_MIN" in lines[2] and "l1_runs_min = 32 in PlanOptions" in lines[2]


def test_removed_names_are_no_settings_and_go_with_the_next_release() -> None:
    assert REMOVED_SETTINGS.keys().isdisjoint({name for name, _, _ in declarations()})
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {row.release for row in REMOVED_SETTINGS.values()} <= {project["version"]}, "delete the rows of older ones"


def test_the_constants_that_the_removed_settings_name_are_true() -> None:
    constants = {
        **{name: getattr(PlanOptions(), name) for name in PlanOptions.__slots__},
        **{name: getattr(Intervals(), name) for name in Intervals.__slots__},
    }
    for name, row in REMOVED_SETTINGS.items():
        found = re.match(r"(\w+) = ([0-9.]+) in (?:(PlanOptions|Intervals) \()?([a-z_/]+)\.py", row.constant)
        if found is None:
            assert (name, BROKER_CONFIGS[name].default) == ("default.replication.factor", "1")
        elif found[3]:
            assert float(found[2]) == constants[found[1]], name
        else:
            module = importlib.import_module(found[4].replace("/", "."))
            assert float(found[2]) == getattr(module, found[1]), name
            if name not in {"connection.requests.max", "fetch.max.wait.ms", "read.concurrency"}:  # not Kafka's
                assert BROKER_CONFIGS[name].default == found[2], "as DescribeConfigs shows it"
