"""`siltstone doctor`: gather facts and print the verdicts of `siltstone/ops/doctor.py`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.text import Text

from agents.listeners.listener_tls import tls_settings_of
from metadata.postgres.probes.facts import probe_postgres
from metadata.postgres.probes.load import probe_load
from metadata.postgres.probes.pooler import SharedBackendsError
from runtime.clock import SystemClock
from runtime.errors import BadInputError, SiltstoneError
from runtime.ids import SystemIds
from runtime.settings.listeners import listeners_of
from runtime.settings.table import Settings
from runtime.tls.contexts import server_tls
from runtime.tls.files import ServerTlsSettings, read_file
from runtime.tls.judging import certificates_in
from siltstone.cli.options.system_options import (
    SystemOptions,
    Urls,
    opened,
    opened_store,
    resolved,
    same_cluster,
    system_options,
)
from siltstone.cli.postgres_remedies import remedy_of
from siltstone.cli.producers import agent_urls, fetch_page
from siltstone.embedded.run_file import read_run_file
from siltstone.ops.capacity.figures import DEFAULT_CLASS
from siltstone.ops.capacity.judge import judge_capacity
from siltstone.ops.capacity.limits import vcpus_of
from siltstone.ops.doctor import (
    Check,
    Verdict,
    failure,
    judge_bucket,
    judge_postgres,
    judge_producers,
    judge_python,
    judge_room,
    judge_store,
    passed,
    warning,
)
from siltstone.ops.exposure import ServedCertificate, advertised_host, judge_certificate, judge_exposure
from siltstone.ops.producers import producers_of
from siltstone.terminal.output import console, json_option, print_json
from siltstone.terminal.plain import say
from storage.cluster import Action
from storage.local import reserve_bytes
from storage.objects import StoreFullError
from storage.probe import probe_conditional_create
from storage.urls import ObjectStoreUrl, parse_store_url

_EXPOSURE_NOT_CHECKED = (
    "not checked: listeners, ACLs and certificates; with --data they are those of `siltstone dev`; for those of"
    " an agent add --config FILE"
)
_STYLES: Mapping[Verdict, str] = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


@click.command()
@system_options
@click.option(
    "--instance-class",
    metavar="CLASS",
    default=DEFAULT_CLASS,
    show_default=True,
    help="What Postgres runs on, as RDS names it: its vCPUs bound the commits a second. For another machine: one with"
    " as many vCPUs.",
)
@json_option
def doctor(given: SystemOptions, instance_class: str, as_json: bool) -> None:
    """Check that store, Postgres and clock are fit for use, what Postgres carries, that no producer waits for small
    batches, and who may come in by the settings: listeners, certificates, ACLs.

    Exit code 1 if a check fails, or if neither a store nor a Postgres is named. Writes a few small objects below probe/
    in the object store and deletes them. Changes no table in Postgres. Looks at the load of one second: ask when
    the load is that of every day.

    \b
    Examples:
      siltstone doctor --data ./siltstone-data
      siltstone doctor --metadata postgresql://me@db/silt \\
          --object-store s3://records/prod
      siltstone doctor --config agent.toml --json
    """
    vcpus_of(instance_class)  # an unknown class is an error before anything is asked
    with resolved(given) as urls:
        checks = [*asyncio.run(_examine(urls, instance_class)), *_producer_checks(given.data)]
    asks_exposure = given.data is None or given.config is not None
    if asks_exposure:  # the agents of a directory have settings of their own, unless the user names others
        checks += [*judge_exposure(given.settings), *_certificate_checks(given.settings)]
    if not asks_exposure:
        say(_EXPOSURE_NOT_CHECKED, err=as_json)
    if as_json:
        fields = ("name", "verdict", "detail", "remedy")
        print_json([{field: str(getattr(check, field)) for field in fields} for check in checks])
    else:
        if given.data is None and not (given.metadata_url and given.object_store_url):
            say(_not_looked_at(given))
        _print(checks)
    if not (given.data or given.metadata_url or given.object_store_url):
        raise BadInputError(
            "no Postgres and no object store were named, so neither was checked",
            remedy="give --data DIR, or --metadata URL and --object-store URL; one of the URLs is enough to check one",
        )
    sys.exit(1 if any(check.verdict is Verdict.FAIL for check in checks) else 0)


def _not_looked_at(given: SystemOptions) -> str:
    urls = {"Postgres": given.metadata_url, "an object store": given.object_store_url}
    missing = " and ".join(name for name, url in urls.items() if not url)
    ways = "--data DIR of `siltstone dev`, or --metadata URL and --object-store URL, or their settings"
    return f"not checked: {missing}; give {ways}"


async def _examine(urls: Urls, instance_class: str) -> Sequence[Check]:
    version = sys.version_info
    checks = [judge_python((version.major, version.minor, version.micro))]
    checks += await _postgres_checks(urls.metadata, instance_class)
    checks += await _store_checks(urls.object_store)
    if urls.metadata and urls.object_store:
        checks.append(await _cluster_check(urls))
    return checks


async def _postgres_checks(url: str, instance_class: str) -> Sequence[Check]:
    if not url:
        return [warning("postgres", "not checked: no option or setting names it", "give --metadata URL or --data DIR")]
    try:
        facts = await probe_postgres(url)
    except SharedBackendsError as error:
        return [failure("postgres pooler", error.message, error.remedy)]
    except SiltstoneError as error:
        return [failure("postgres", error.message, error.remedy or remedy_of(error) or "correct metadata.url")]
    checks = judge_postgres(facts, SystemClock().wall_ms())
    if facts.is_standby or facts.schema.revision is None or facts.lacking_rights_on:
        return checks  # these fail, and its load cannot be measured
    try:
        load = await probe_load(url, SystemClock())
    except SiltstoneError as error:
        return [*checks, warning("postgres load", error.message, error.remedy or "see the checks above")]
    return [*checks, *judge_capacity(facts, load, instance_class)]


async def _store_checks(url: str) -> Sequence[Check]:
    if not url:
        return [warning("store", "not checked: no option or setting names it", "give --object-store URL or --data DIR")]
    try:
        place = parse_store_url(url)
        checks = await _checks_of(replace(place, l0=None), "store")
        if place.l0 is not None:
            checks += await _checks_of(place.l0, "second store")
    except StoreFullError as error:
        return [failure("store", f"disk full: {error.message}", f"{error.remedy}; acknowledged records are safe")]
    except SiltstoneError as error:
        return [failure("store", error.message, error.remedy or "start the store, or correct object.store.url")]
    return checks


async def _checks_of(place: ObjectStoreUrl, name: str) -> list[Check]:
    async with opened_store(str(place)) as store:
        checks = list(judge_store(await probe_conditional_create(store, SystemIds(), SystemClock()), name))
    if place.scheme == "file":
        system = os.statvfs(place.directory)
        reserve = reserve_bytes(system.f_blocks * system.f_frsize)
        checks.append(judge_room(str(place.directory), system.f_bavail * system.f_frsize, reserve, name))
    if place.scheme == "s3":
        from storage.s3.bucket import probe_bucket  # loads the S3 client, which other stores do not need
        from storage.s3.store import DIRECTORY_SUFFIX

        if not place.bucket.endswith(DIRECTORY_SUFFIX):  # a directory bucket has no versions
            checks.append(judge_bucket(await probe_bucket(place), name))
    return checks


async def _cluster_check(urls: Urls) -> Check:
    """Whether Postgres and the store belong to the same cluster. The check does not bind them to each other."""
    name = "cluster id"
    try:
        async with opened(urls) as system:
            cluster_id, action = await same_cluster(system)
    except SiltstoneError as error:
        return failure(name, error.message, error.remedy or "see the checks above")
    if action is Action.WRITE:
        return passed(name, f"{cluster_id}; the first agent will write it to the store")
    return passed(name, f"{cluster_id} in both")


def _producer_checks(data: Path | None) -> Sequence[Check]:
    """Only for agents that run on this machine: elsewhere `siltstone producers --agent` asks them."""
    running = read_run_file(data) if data is not None else None
    if running is None or not running.metrics_urls:
        return []
    try:
        pages = [fetch_page(url) for url in agent_urls(None, running.metrics_urls)]
    except SiltstoneError as error:
        return [warning("producers", error.message, "see the log of `siltstone dev`")]
    return [judge_producers(producers_of(pages))]


def _certificate_checks(settings: Settings) -> Iterator[Check]:
    served = [(tls_settings_of(each), advertised_host(each)) for each in listeners_of(settings) if each.encrypts]
    others = (
        ("metrics", settings.metrics_tls_cert_file, settings.metrics_tls_key_file, settings.metrics_tls_ca_file),
        ("zone", settings.zone_tls_cert_file, settings.zone_tls_key_file, settings.zone_tls_ca_file),
    )
    for kind, cert, key, ca in others:
        if cert:
            tls = ServerTlsSettings(
                listener=f"{kind}.listen",
                prefix=f"{kind}.tls",
                cert_file=Path(cert),
                key_file=Path(key),
                ca_file=Path(ca) if ca else None,
            )
            served.append((tls, None))
    now_ms = SystemClock().wall_ms()
    for tls, host in served:
        try:
            loaded = server_tls(tls, now_ms)
            own = certificates_in(read_file(f"{tls.prefix}.cert.file", tls.cert_file))[0]
        except SiltstoneError as error:
            yield failure(f"certificate {tls.listener}", error.message, error.remedy)
            continue
        certificate = ServedCertificate(certificate=own, expires_ms=loaded.expires_ms, warnings=loaded.warnings)
        yield from judge_certificate(tls.listener, certificate, host, now_ms, setting=f"{tls.prefix}.cert.file")


def _print(checks: Sequence[Check]) -> None:
    out = console()
    width = max(len(check.name) for check in checks)
    for check in checks:
        line = Text.assemble((f"{check.verdict:<5}", _STYLES[check.verdict]), f"{check.name:<{width}}  {check.detail}")
        out.print(line, soft_wrap=True)
        if check.verdict is not Verdict.OK:
            out.print(f"     remedy: {check.remedy}", markup=False, soft_wrap=True)
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in Verdict}
    say(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
