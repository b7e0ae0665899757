"""Contexts from files: good ones work with a client in memory, and each mistake is named with its remedy."""

from __future__ import annotations

import os
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from runtime.clock import SystemClock
from runtime.tls.contexts import ServerTls, client_context, server_tls
from runtime.tls.files import ClientAuth, ClientTlsSettings, ServerTlsSettings, TlsFileError
from tests.fixtures.certificates import EXPIRED, Authority, Certificates, IdentityFiles, Validity

NOW_MS = SystemClock().wall_ms()
PREFIX = "listener.public.tls"


def settings(files: IdentityFiles) -> ServerTlsSettings:
    return ServerTlsSettings(listener="public", prefix=PREFIX, cert_file=files.cert, key_file=files.key)


def mutual(certificates: Certificates, auth: ClientAuth = ClientAuth.REQUIRED) -> ServerTlsSettings:
    return replace(settings(certificates.server), ca_file=certificates.ca, client_auth=auth)


def shaken(server: ServerTls, client: ssl.SSLContext, name: str = "localhost") -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Server and client after their handshake; raises what either says against it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        server.context.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=name),
    )
    for _ in range(10):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    for side in sides:
        side.do_handshake()
    return sides


def refusal(of: ServerTlsSettings, now_ms: int = NOW_MS) -> TlsFileError:
    with pytest.raises(TlsFileError) as refused:
        server_tls(of, now_ms)
    assert refused.value.remedy
    return refused.value


def test_a_server_of_files_talks_to_clients_that_trust_its_authority(certificates: Certificates) -> None:
    for files in (certificates.server, certificates.server_rsa):
        loaded = server_tls(settings(files), NOW_MS)
        assert loaded.warnings == [] and loaded.subject == "CN=localhost"
        assert abs(loaded.expires_ms - NOW_MS - 30 * 86_400_000) < 3_600_000
        for name in ("localhost", "127.0.0.1", "::1"):
            server, _ = shaken(loaded, certificates.client_context(), name)
            assert server.version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shaken(server_tls(settings(certificates.server_elsewhere), NOW_MS), certificates.client_context())


def test_a_server_speaks_tls_1_2_and_nothing_older(certificates: Certificates) -> None:
    loaded = server_tls(settings(certificates.server), NOW_MS)
    client = certificates.client_context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    server, _ = shaken(loaded, client)
    assert server.version() == "TLSv1.2" and server.compression() is None
    with pytest.raises(ssl.SSLError):
        shaken(server_tls(replace(settings(certificates.server), version_min=ssl.TLSVersion.TLSv1_3), NOW_MS), client)
    with pytest.warns(DeprecationWarning):
        client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    client.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        shaken(loaded, client)


def test_no_session_is_resumed(certificates: Certificates) -> None:
    loaded = server_tls(mutual(certificates), NOW_MS)
    client = certificates.client_context(certificates.client)
    server, theirs = shaken(loaded, client)
    server.write(b"x")
    assert theirs.read(1) == b"x"
    assert theirs.session is None or not theirs.session.has_ticket


def test_an_intermediate_authority_is_sent_with_the_certificate(certificates: Certificates, tmp_path: Path) -> None:
    files = Authority("between", parent=certificates.authority).server().write(tmp_path / "server")
    shaken(server_tls(settings(files), NOW_MS), certificates.client_context())


def test_one_file_may_hold_certificate_and_key(certificates: Certificates, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.touch(mode=0o600)
    both.write_bytes(certificates.server.key.read_bytes() + certificates.server.cert.read_bytes())
    shaken(server_tls(settings(IdentityFiles(both, both)), NOW_MS), certificates.client_context())


def test_clients_show_certificates_as_asked(certificates: Certificates) -> None:
    nobody, ann = certificates.client_context(), certificates.client_context(certificates.client)
    stranger = certificates.client_context(certificates.client_of_other)
    late = certificates.client_context(certificates.client_expired)
    a_server = certificates.client_context(certificates.server)

    required = server_tls(mutual(certificates), NOW_MS)
    assert shaken(required, ann)[0].getpeercert(binary_form=True)
    for client in (nobody, stranger, late, a_server):
        with pytest.raises(ssl.SSLError):
            shaken(required, client)

    requested = server_tls(mutual(certificates, ClientAuth.REQUESTED), NOW_MS)
    assert shaken(requested, ann)[0].getpeercert(binary_form=True)
    assert shaken(requested, nobody)[0].getpeercert(binary_form=True) is None
    with pytest.raises(ssl.SSLError):
        shaken(requested, stranger)

    assert shaken(server_tls(settings(certificates.server), NOW_MS), ann)[0].getpeercert(binary_form=True) is None


def test_revoked_certificates_are_known_by_their_list(certificates: Certificates) -> None:
    loaded = server_tls(replace(mutual(certificates), crl_file=certificates.crl), NOW_MS)
    bob = x509.load_pem_x509_certificate(certificates.client_revoked.cert.read_bytes())
    ann = x509.load_pem_x509_certificate(certificates.client.cert.read_bytes())
    assert loaded.revocations.include(bob) and not loaded.revocations.include(ann)


def test_an_old_list_goes_on_to_name_its_certificates(certificates: Certificates, tmp_path: Path) -> None:
    bob = certificates.authority.client("CN=bob")
    crl = tmp_path / "crl.pem"
    crl.write_bytes(certificates.authority.crl([bob], validity=EXPIRED))
    loaded = server_tls(replace(mutual(certificates), crl_file=crl), NOW_MS)
    assert loaded.revocations.include(bob.certificate)
    assert loaded.revocations.expires_ms is not None and loaded.revocations.expires_ms < NOW_MS


def test_a_list_that_says_nothing_about_our_authorities_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    of = replace(mutual(certificates), crl_file=tmp_path / "crl.pem")
    impostor = Authority()  # the same name, another key
    for data, says in (
        (b"", "empty"),
        (b"garbage", "not a PEM file"),
        (certificates.ca.read_bytes(), "it holds CERTIFICATE"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "damaged"),
        (certificates.other_authority.crl(), "its issuer is not in the CA file"),
        (impostor.crl(), "no authority of the CA file signed it"),
        (certificates.authority.crl() + impostor.crl(), "no authority of the CA file signed it"),
    ):
        (tmp_path / "crl.pem").write_bytes(data)
        error = refusal(of)
        assert says in error.message and f"{PREFIX}.crl.file = {tmp_path}" in error.message


def test_each_mistake_with_a_file_is_named(certificates: Certificates, tmp_path: Path) -> None:
    good = settings(certificates.server)
    identity = certificates.authority.server()
    garbage, empty, der, damaged, encrypted, pipe = (
        tmp_path / name for name in ("garbage", "empty", "der", "damaged", "encrypted", "pipe")
    )
    garbage.write_bytes(b"\x00\x01garbage" * 100)
    empty.touch()
    der.write_bytes(identity.der)
    damaged.write_bytes(certificates.server.cert.read_bytes()[:200] + b"\n-----END CERTIFICATE-----\n")
    encrypted.write_bytes(identity.encrypted_key_pem)
    os.mkfifo(pipe)
    for of, says in (
        (replace(good, cert_file=tmp_path / "none"), ["cert.file", "/none", "no such file"]),
        (replace(good, key_file=tmp_path / "none"), ["key.file", "/none", "no such file"]),
        (replace(good, ca_file=tmp_path / "none"), ["ca.file", "/none", "no such file"]),
        (replace(good, cert_file=tmp_path), ["cert.file", "not a file"]),
        (replace(good, key_file=garbage / "below"), ["key.file", "cannot be read: Not a directory", "uid"]),
        (replace(good, cert_file=pipe), ["cert.file", "not a file"]),
        (replace(good, cert_file=garbage), ["cert.file", "/garbage", "not a PEM file"]),
        (replace(good, cert_file=empty), ["cert.file", "/empty", "empty"]),
        (replace(good, cert_file=der), ["DER", "openssl x509 -inform DER"]),
        (replace(good, cert_file=damaged), ["cert.file", "damaged"]),
        (replace(good, cert_file=certificates.server.key), ["cert.file", "it holds PRIVATE KEY"]),
        (replace(good, key_file=certificates.server.cert), ["key.file", "it holds CERTIFICATE"]),
        (replace(good, key_file=encrypted), ["key.file", "encrypted", "openssl pkey"]),
        (replace(good, key_file=certificates.server_rsa.key), ["key.file", "does not belong", "CN=localhost"]),
        (replace(good, key_file=certificates.server_expired.key), ["does not belong"]),
        (settings(certificates.server_expired), ["cert.file", "expired", "CN=localhost"]),
        (settings(certificates.server_not_yet), ["cert.file", "not valid before", "clock"]),
        (replace(good, client_auth=ClientAuth.REQUIRED), ["client.auth=required", "ca.file"]),
        (replace(good, crl_file=certificates.crl), ["crl.file", "ca.file"]),
        (replace(good, ca_file=garbage), ["ca.file", "not a PEM file"]),
    ):
        error = refusal(of)
        assert [word for word in says if word not in str(error)] == [], str(error)
        assert PREFIX in error.message


def test_an_expired_issuer_in_the_chain_is_refused_and_counts_for_expiry(
    certificates: Certificates, tmp_path: Path
) -> None:
    between = Authority("between", parent=certificates.authority)
    files = between.server(validity=Validity(-1, 700)).write(tmp_path / "server")
    loaded = server_tls(settings(files), NOW_MS)
    assert abs(loaded.expires_ms - NOW_MS - 365 * 86_400_000) < 3_600_000
    assert "CN=between" in str(refusal(settings(files), NOW_MS + 366 * 86_400_000))


def test_a_weak_key_is_refused_by_its_file(certificates: Certificates, tmp_path: Path) -> None:
    key = rsa.generate_private_key(65_537, 1_024)
    good = certificates.authority.certificate
    weak = (
        x509.CertificateBuilder()
        .subject_name(good.subject)
        .issuer_name(good.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(good.not_valid_before_utc)
        .not_valid_after(good.not_valid_after_utc)
        .sign(key, hashes.SHA256())
    )
    files = IdentityFiles(tmp_path / "cert", tmp_path / "key")
    files.cert.write_bytes(weak.public_bytes(Encoding.PEM))
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    error = refusal(settings(files))
    assert "cert.file" in error.message and "TOO_SMALL" in error.message


def test_a_key_that_everybody_may_read_is_warned_of(certificates: Certificates, tmp_path: Path) -> None:
    files = certificates.authority.server().write(tmp_path / "server")
    files.key.chmod(0o644)
    (warning,) = server_tls(settings(files), NOW_MS).warnings
    assert f"{PREFIX}.key.file = {files.key}" in warning


def test_a_client_of_ours_checks_names_and_shows_its_certificate(certificates: Certificates) -> None:
    server = server_tls(mutual(certificates), NOW_MS)
    of = ClientTlsSettings(
        prefix="client.tls",
        ca_file=certificates.ca,
        cert_file=certificates.client.cert,
        key_file=certificates.client.key,
    )
    ours, _ = shaken(server, client_context(of, NOW_MS))
    assert ours.getpeercert(binary_form=True)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shaken(server, client_context(of, NOW_MS), "elsewhere.invalid")
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(server, client_context(replace(of, ca_file=certificates.other_ca), NOW_MS))
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(server, client_context(replace(of, ca_file=None), NOW_MS))
    for wrong, says in (
        (replace(of, key_file=None), "'client.tls.cert.file' without 'client.tls.key.file'"),
        (replace(of, cert_file=None), "'client.tls.key.file' without 'client.tls.cert.file'"),
        (replace(of, ca_file=Path("/none")), "client.tls.ca.file"),
        (replace(of, cert_file=certificates.client_expired.cert, key_file=certificates.client_expired.key), "expired"),
    ):
        with pytest.raises(TlsFileError, match=says):
            client_context(wrong, NOW_MS)
