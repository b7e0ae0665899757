"""A listener's certificate is renewed from its files; files that are not good never take its place."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from runtime.clock import ManualClock, SystemClock
from runtime.metrics import Metrics
from runtime.tls.certificates import Certificates
from runtime.tls.files import ClientAuth, ServerTlsSettings, TlsFileError
from tests.fixtures.certificates import EXPIRED, NOT_YET, Identity
from tests.fixtures.certificates import Certificates as Made
from tests.fixtures.log_lines import LogLines
from tests.fixtures.metric_values import metric_value

REFUSED = "changed TLS files are not used, the listener goes on with the old ones"
DAY_MS = 86_400_000


@dataclass
class Listener:
    made: Made
    directory: Path
    clock: ManualClock
    metrics: Metrics
    settings: ServerTlsSettings

    def put(self, identity: Identity) -> None:
        """Over the old files, as most programs that renew certificates do it: new files, then renamed."""
        new = identity.write(self.directory / "new")
        os.replace(new.key, self.settings.key_file)
        os.replace(new.cert, self.settings.cert_file)

    def certificates(self) -> Certificates:
        return Certificates(self.settings, self.clock, self.metrics)

    def reloads(self, outcome: str) -> float:
        return metric_value(self.metrics, "tls_reloads_total", {"listener": "public", "outcome": outcome})

    def expires_seconds(self) -> float:
        return metric_value(self.metrics, "tls_certificate_expires_seconds", {"listener": "public"})


@pytest.fixture
def listener(certificates: Made, tmp_path: Path) -> Listener:
    files = certificates.authority.server().write(tmp_path / "server")
    ca, crl = (Path(shutil.copy(path, tmp_path)) for path in (certificates.ca, certificates.crl))
    settings = ServerTlsSettings(
        listener="public",
        prefix="listener.public.tls",
        cert_file=files.cert,
        key_file=files.key,
        ca_file=ca,
        crl_file=crl,
        client_auth=ClientAuth.REQUIRED,
    )
    return Listener(certificates, tmp_path, ManualClock(SystemClock().wall_ms()), Metrics(), settings)


async def test_new_files_are_used_by_new_connections(listener: Listener) -> None:
    certificates = listener.certificates()
    before = certificates.current()
    await certificates.check()
    assert certificates.current() is before
    listener.put(listener.made.authority.server(["renewed.invalid"]))
    await certificates.check()
    assert certificates.current().subject == "CN=renewed.invalid" and before.subject == "CN=localhost"
    assert listener.reloads("used") == 1


async def test_a_link_that_leads_elsewhere_is_a_change(listener: Listener) -> None:
    """As Kubernetes renews a secret: files link through `..data`, which is swapped for another directory."""
    for name, host in (("old", "old.invalid"), ("new", "new.invalid")):
        (listener.directory / name).mkdir()
        listener.made.authority.server([host]).write(listener.directory / name / "server")
    data = listener.directory / "..data"
    data.symlink_to("old")
    listener.settings = replace(
        listener.settings, cert_file=data / "server.cert", key_file=data / "server.key", ca_file=listener.made.ca
    )
    certificates = listener.certificates()
    assert certificates.current().subject == "CN=old.invalid"
    (listener.directory / "swap").symlink_to("new")
    os.replace(listener.directory / "swap", data)
    await certificates.check()
    assert certificates.current().subject == "CN=new.invalid"


async def test_files_are_read_again_when_somebody_asks(listener: Listener) -> None:
    certificates = listener.certificates()
    before = certificates.current()
    await certificates.check(anyway=True)
    assert certificates.current() is not before and listener.reloads("used") == 1


async def test_bad_files_never_take_the_place_of_good_ones(listener: Listener, log_lines: LogLines) -> None:
    certificates = listener.certificates()
    before = certificates.current()
    made, settings = listener.made, listener.settings
    assert settings.ca_file is not None and settings.crl_file is not None
    good = made.authority.server(["good.invalid"])

    def swap_key_alone() -> None:
        good.write(listener.directory / "other")
        os.replace(listener.directory / "other.key", settings.key_file)

    crl = settings.crl_file.read_bytes()
    for number, (spoil, says) in enumerate(
        (
            (lambda: listener.put(made.authority.server(validity=EXPIRED)), "expired"),
            (lambda: listener.put(made.authority.server(validity=NOT_YET)), "not valid before"),
            (swap_key_alone, "does not belong"),
            (lambda: settings.cert_file.write_bytes(b""), "empty"),
            (settings.cert_file.unlink, "no such file"),
            (lambda: (listener.put(good), settings.crl_file.write_bytes(b"half")), "crl.file"),
            (lambda: settings.crl_file.write_bytes(made.other_authority.crl()), "crl.file"),
            (lambda: (settings.crl_file.write_bytes(crl), settings.ca_file.write_bytes(b"half")), "ca.file"),
        ),
        1,
    ):
        spoil()
        for _ in range(3):
            await certificates.check()
        # then the old one goes on, and the log says it once for each mistake
        assert certificates.current() is before
        lines = log_lines.named(REFUSED)
        assert len(lines) == number and says in lines[-1]["error"] and lines[-1]["listener"] == "public"
        assert listener.reloads("refused") == number
    # and when the last mistake is mended, the new ones are used
    settings.ca_file.write_bytes(made.ca.read_bytes())
    await certificates.check()
    assert certificates.current().subject == "CN=good.invalid"


async def test_a_certificate_that_was_early_is_used_when_its_time_comes(listener: Listener) -> None:
    certificates = listener.certificates()
    listener.put(listener.made.authority.server(["early.invalid"], validity=NOT_YET))
    await certificates.check()
    assert certificates.current().subject == "CN=localhost"
    listener.clock.advance_ms(2 * DAY_MS)
    await certificates.check()
    assert certificates.current().subject == "CN=early.invalid"


async def test_the_metric_says_when_the_certificate_expires(listener: Listener) -> None:
    certificates = listener.certificates()
    assert abs(listener.expires_seconds() - 30 * 86_400) < 3_600
    listener.clock.advance_ms(31 * DAY_MS)
    await certificates.check()
    assert abs(listener.expires_seconds() + 86_400) < 3_600


async def test_an_old_revocation_list_is_told_once(listener: Listener, log_lines: LogLines) -> None:
    certificates = listener.certificates()
    listener.clock.advance_ms(31 * DAY_MS)
    for _ in range(3):
        await certificates.check()
    (line,) = log_lines.named("a newer revocation list should be there, the old one goes on to be used")
    assert line["crl_file"] == str(listener.settings.crl_file)


def test_a_start_with_an_expired_certificate_is_refused(listener: Listener) -> None:
    listener.put(listener.made.authority.server(validity=EXPIRED))
    with pytest.raises(TlsFileError, match="expired") as refused:
        listener.certificates()
    assert "get a new one" in refused.value.remedy
