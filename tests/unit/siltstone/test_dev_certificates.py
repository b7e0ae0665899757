"""The certificates of `siltstone dev --secure`: kept as long as they are of use, else made anew."""

from __future__ import annotations

import datetime
import stat
from pathlib import Path

import pytest
from cryptography import x509

from siltstone.embedded.certificates import CertificateFiles, keep_certificates
from siltstone.embedded.private_files import write_private

NAMES = ("localhost", "127.0.0.1", "::1")
NOW = datetime.datetime(2027, 3, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    made = CertificateFiles(tmp_path / "certificates")
    assert keep_certificates(made, NAMES, NOW)
    return made


def contents(files: CertificateFiles) -> tuple[bytes, ...]:
    return tuple(each.read_bytes() for each in (files.ca, files.ca_key, files.server, files.server_key))


def test_they_are_their_owners_alone_and_name_this_machine(files: CertificateFiles) -> None:
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in files.folder.iterdir()} == {0o600}
    assert len(list(files.folder.iterdir())) == 4
    server = x509.load_pem_x509_certificate(files.server.read_bytes())
    server.verify_directly_issued_by(x509.load_pem_x509_certificate(files.ca.read_bytes()))
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]


def test_they_are_kept_until_a_week_before_their_end(files: CertificateFiles) -> None:
    before = contents(files)
    assert not keep_certificates(files, NAMES, NOW + 357 * DAY)
    assert not keep_certificates(files, NAMES[:1], NOW)
    assert contents(files) == before
    # then the server's is renewed, and the authority stays: clients go on to trust it
    assert keep_certificates(files, NAMES, NOW + 358 * DAY)
    assert contents(files)[:2] == before[:2] and contents(files)[2] != before[2]
    assert not keep_certificates(files, NAMES, NOW + 365 * DAY)


def test_an_authority_that_ends_takes_its_certificates_with_it(files: CertificateFiles) -> None:
    before = contents(files)
    assert keep_certificates(files, NAMES, NOW + 3_643 * DAY)
    assert not set(before) & set(contents(files))


def test_a_clock_that_was_set_back_makes_new_ones(files: CertificateFiles) -> None:
    assert keep_certificates(files, NAMES, NOW - DAY)
    assert not keep_certificates(files, NAMES, NOW - DAY)


def test_a_host_that_is_new_is_named_by_a_new_certificate(files: CertificateFiles) -> None:
    before = contents(files)
    assert keep_certificates(files, [*NAMES, "silt.example"], NOW)
    assert contents(files)[:2] == before[:2]
    assert not keep_certificates(files, [*NAMES, "silt.example"], NOW)


@pytest.mark.parametrize(
    ("file", "holds", "authority_stays"),
    [
        ("server.pem", "", True),
        ("server.key", "-----BEGIN", True),
        ("server.key", "ca.key", True),
        ("server.pem", "ca.pem", True),
        ("ca.key", "", False),
        ("ca.pem", "\n", False),
        ("ca.pem", "server.pem", False),
    ],
)
def test_files_that_are_of_no_use_are_made_anew(
    files: CertificateFiles, file: str, holds: str, authority_stays: bool
) -> None:
    """`holds`: what the file has instead, a text or that of another file; "": it is gone."""
    before = contents(files)
    harmed, other = files.folder / file, files.folder / holds
    if holds:
        harmed.write_bytes(other.read_bytes() if other.suffix else holds.encode())
    else:
        harmed.unlink()
    assert keep_certificates(files, NAMES, NOW)
    assert (contents(files)[:2] == before[:2]) is authority_stays
    assert not keep_certificates(files, NAMES, NOW)


def test_a_private_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o644)
    write_private(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)
    with pytest.raises(OSError, match="none"):
        write_private(tmp_path / "none" / "file", b"")
    assert list(tmp_path.iterdir()) == [path]
