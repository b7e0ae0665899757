"""The report of an erasure: canonical, without keys, signed."""

from __future__ import annotations

import hmac
import json
import re
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from metadata.erasures.contract import ErasureStage, KeyMark
from siltstone.ops.erasure.report import (
    NotDoneError,
    ReportFileError,
    SigningKeyError,
    canonical_json,
    read_signing_key,
    report_of,
    report_pairs,
    save,
)
from siltstone.ops.erasure.request import hash_of
from tests.unit.siltstone.ops.erasure.test_status import ERASING, NOW_MS

GUIDE = Path(__file__).resolve().parents[5] / "docs" / "erasure.md"
DONE = replace(ERASING, stage=ErasureStage.DONE, done_ms=NOW_MS, report={"files": [], "é": 1})
MARKS = {1: [KeyMark(hash_of(b"bob"), 9)], 0: [KeyMark(hash_of(b"ada"), 5, True), KeyMark(hash_of(b"bob"), 7)]}


def pem(key: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey, secret: bytes = b"") -> bytes:
    how: KeySerializationEncryption = BestAvailableEncryption(secret) if secret else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)


def test_equal_reports_have_equal_bytes() -> None:
    assert canonical_json({"b": [1, True], "a": "é"}) == '{"a":"é","b":[1,true]}'.encode()


def test_an_unfinished_erasure_has_no_report() -> None:
    with pytest.raises(NotDoneError, match="erasure 7 is not done"):
        report_of(ERASING, MARKS)


def test_the_secret_shows_that_a_key_was_erased_and_the_report_alone_does_not() -> None:
    report = report_of(DONE, MARKS)
    digest = hmac.digest(DONE.secret, hash_of(b"ada"), "sha256").hex()
    assert [digest, 5, True] in report["keyed_marks"]["0"]
    assert report["keyed_marks"]["1"] == [[hmac.digest(DONE.secret, hash_of(b"bob"), "sha256").hex(), 9, False]]
    text = canonical_json(report).decode()
    assert hash_of(b"ada").hex() not in text and DONE.secret.hex() not in text
    assert report["deadline_kept"] and report["account"] == DONE.report
    assert report["not_covered"].startswith("tables until their next export, ")


def test_the_files_are_the_report_its_secret_and_its_signature(tmp_path: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    report, secret, signature = save(tmp_path / "r.json", report_of(DONE, MARKS), DONE.secret, key)
    # then
    assert bytes.fromhex(secret.read_text()) == DONE.secret
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert json.loads(report.read_bytes()) == json.loads(canonical_json(report_of(DONE, MARKS)))
    key.public_key().verify(signature.read_bytes(), report.read_bytes())
    with pytest.raises(InvalidSignature):
        key.public_key().verify(signature.read_bytes(), report.read_bytes() + b" ")
    # and without a key there is no signature
    assert len(save(tmp_path / "other.json", report_of(DONE, MARKS), DONE.secret, None)) == 2


def test_no_file_is_written_over_and_a_report_needs_a_name(tmp_path: Path) -> None:
    report = report_of(DONE, MARKS)
    for there in ("r.json", "r.json.secret", "r.json.sig"):
        (tmp_path / there).write_text("precious")
        with pytest.raises(ReportFileError, match=rf"{there} is there already"):
            save(tmp_path / "r.json", report, DONE.secret, None)
        assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(there, "precious")]
        (tmp_path / there).unlink()
    with pytest.raises(ReportFileError, match="needs the name of a file"):
        save(Path(""), report, DONE.secret, None)


@pytest.mark.skipif(which("openssl") is None, reason="needs the program openssl")
def test_openssl_verifies_the_signature(tmp_path: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    save(tmp_path / "r.json", report_of(DONE, MARKS), DONE.secret, key)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    words = "openssl pkeyutl -verify -pubin -inkey public.pem -rawin -in r.json -sigfile r.json.sig"
    done = subprocess.run(words.split(), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "r.json").write_bytes((tmp_path / "r.json").read_bytes() + b" ")
    assert subprocess.run(words.split(), cwd=tmp_path, capture_output=True).returncode != 0


def test_the_program_of_the_guide_checks_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given the program of docs/erasure.md, and the files by its names
    (program,) = re.findall(r"```python\n(import hashlib\n.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    monkeypatch.chdir(tmp_path)
    key = ed25519.Ed25519PrivateKey.generate()
    report, *_ = save(Path("erasure-2.json"), report_of(DONE, MARKS), DONE.secret, key)
    Path("public.pem").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    # then
    assert names["was_erased"](b"ada") and names["was_erased"](b"bob")
    assert not names["was_erased"](b"eve")
    report.write_bytes(report.read_bytes().replace(b"true", b"false", 1))
    with pytest.raises(InvalidSignature):
        names["was_erased"](b"ada")


def test_only_a_plain_ed25519_key_signs(tmp_path: Path) -> None:
    ours = ed25519.Ed25519PrivateKey.generate()
    path = tmp_path / "k.pem"
    path.write_bytes(pem(ours))
    assert read_signing_key(path).private_bytes_raw() == ours.private_bytes_raw()
    for content, why in (
        (b"no key", "is no private key in PEM"),
        (pem(ours, b"word"), "is encrypted"),
        (pem(rsa.generate_private_key(65_537, 2_048)), "of another kind than Ed25519"),
    ):
        path.write_bytes(content)
        with pytest.raises(SigningKeyError, match=why):
            read_signing_key(path)


def test_the_report_in_short_counts_files_by_their_end() -> None:
    files = [{"ended": "deleted"}, {"ended": "rewritten and deleted"}, {"ended": "deleted"}]
    listing = {"objects": 3, "size_bytes": 2_048, "sha256": "ab"}
    assert report_pairs({"files": files, "listing": listing}) == {
        "files": "2 deleted, 1 rewritten and deleted",
        "bucket": "3 objects (2.0 KiB) at the end",
        "listing": "SHA-256 ab",
    }
    times = {"created_ms": NOW_MS, "files_seen_since_ms": NOW_MS + 60_000}
    assert report_pairs({"files": files, **times}) == {"files": "2 deleted, 1 rewritten and deleted"}
    times["files_seen_since_ms"] += 1
    assert "when another compactor took over" in report_pairs({"files": files, **times})["files"]
    assert report_pairs({}) == {}
