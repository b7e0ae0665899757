"""The settings of `siltstone dev --secure`, and the files that it gives to clients."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from metadata.memory.store import MemoryMetadata
from metadata.security.contract import UserChange
from runtime.errors import BadInputError
from runtime.settings.listeners import ListenerSettings
from runtime.settings.loading import load_settings
from runtime.settings.table import Settings
from runtime.settings.values import SettingsError
from security.scram import Mechanism, credential_of, is_password_of
from siltstone.cli import main
from siltstone.embedded.secure import (
    Admin,
    OtherAdminError,
    java_client_properties,
    java_escaped,
    keep_admin,
    librdkafka_properties,
    secure_options,
    with_super_user,
    write_files,
)
from siltstone.kafka.security.properties import read_client_config
from siltstone.kafka.security.values import ClientSecurity

NOW_MS = 1_800_000_000_000


def settings_of(data: Path, **more: str) -> Settings:
    return with_super_user(load_settings(None, {}, {**more, **secure_options(data)}))


def test_the_default_listener_encrypts_and_authenticates_and_acls_count(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, listen="127.0.0.1:9999")
    (listener,) = settings.listeners
    assert (listener.name, listener.encrypts, listener.authenticates) == ("default", True, True)
    assert (settings.acl_mode, settings.super_users) == ("auto", "User:admin")
    assert settings_of(tmp_path, **{"acl.mode": "shadow"}).acl_mode == "shadow"


def test_what_secure_sets_is_not_overridden_in_silence(tmp_path: Path) -> None:
    fixed = secure_options(tmp_path)
    config = tmp_path / "agent.toml"
    config.write_text('[listener.default]\nprotocol = "PLAINTEXT"\n')
    with pytest.raises(SettingsError, match=r"--secure sets listener\.default\.protocol=SASL_SSL, and .* says PLAIN"):
        load_settings(config, {}, {}, fixed=fixed, fixed_by="--secure")
    config.write_text('[listener.default]\nprotocol = "SASL_SSL"\n')
    assert load_settings(config, {}, {}, fixed=fixed, fixed_by="--secure") == load_settings(None, {}, fixed)


def test_dev_starts_nothing_when_the_user_and_secure_disagree(tmp_path: Path) -> None:
    words = "dev", "--secure", "--data", str(tmp_path / "data"), "--set", "listener.default.protocol=PLAINTEXT"
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 1 and "the command line says PLAINTEXT" in ran.stderr and "leave out --secure" in ran.stderr
    assert not (tmp_path / "data").exists()


def test_other_super_users_and_listeners_stay(tmp_path: Path) -> None:
    more = {"super.users": "User:ops; User:admin", "listener.mtls.address": "127.0.0.1:9999"}
    settings = settings_of(tmp_path, **more)
    assert settings.super_users == "User:ops;User:admin"
    assert [each.name for each in settings.listeners] == ["default", "mtls"]


def test_an_address_that_others_reach_needs_no_insecure(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, listen="0.0.0.0:9092", **{"advertised.host": "silt.example"})
    write_files(settings, tmp_path, NOW_MS)
    assert b"silt.example" in _der(tmp_path / "certificates" / "server.pem")


def _der(path: Path) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    return x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER)


def test_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--secure makes a user"):
        settings_of(tmp_path, **{"metadata.url": "memory://"})


def test_both_client_files_say_the_same_and_the_password_is_kept(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    admin = write_files(settings, tmp_path, NOW_MS)
    read = [read_client_config(each) for each in (admin.properties, admin.java_properties)]
    assert [each.security for each in read] == [
        ClientSecurity(
            protocol="SASL_SSL",
            mechanism="SCRAM-SHA-512",
            username="admin",
            password=admin.password,
            ca_file=tmp_path / "certificates" / "ca.pem",
            source=str(path),
        )
        for path in (admin.properties, admin.java_properties)
    ]
    assert len(admin.password) >= 32 and admin.password not in repr(admin)
    assert {stat.S_IMODE(each.stat().st_mode) for each in admin.properties.parent.iterdir()} == {0o600}
    assert write_files(settings, tmp_path, NOW_MS).password == admin.password
    admin.properties.unlink()
    assert write_files(settings, tmp_path, NOW_MS).password != admin.password
    admin.properties.write_text("nonsense\n")
    assert write_files(settings, tmp_path, NOW_MS).password != admin.password


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "clients").touch()
    with pytest.raises(BadInputError, match=r"cannot write .*clients"):
        write_files(settings_of(tmp_path), tmp_path, NOW_MS)


@pytest.mark.parametrize("path", ["/tmp/with space/ca.pem", "/tmp/Zoë/😀\\n/ca.pem", " /x"])
def test_any_path_and_password_can_be_written_for_java(path: str, tmp_path: Path) -> None:
    file = tmp_path / "admin.java.properties"
    file.write_text(java_client_properties('a"b\\c', Path(path)), encoding="ascii")
    security = read_client_config(file).security
    assert security.password == 'a"b\\c'
    # ours reads a \uXXXX as one character; Java, like UTF-16, two of them as one beyond the first 65,536
    written = str(security.ca_file).encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    assert written == path.strip()


def test_a_path_stands_as_it_is_for_librdkafka(tmp_path: Path) -> None:
    file = tmp_path / "admin.properties"
    file.write_text(librdkafka_properties("secret", Path("/tmp/Zoë \\n/ca.pem")), encoding="utf-8")
    assert read_client_config(file).security.ca_file == Path("/tmp/Zoë \\n/ca.pem")


def test_escapes_are_those_of_java() -> None:
    assert java_escaped(" a\\b\tö😀") == "\\ a\\\\b\\u0009\\u00f6\\ud83d\\ude00"


async def test_the_user_in_the_metadata_has_the_files_password() -> None:
    metadata = MemoryMetadata().security
    admin = Admin(password="secret", properties=Path("admin.properties"), java_properties=Path("java"))
    await keep_admin(metadata, admin, is_ours=False)
    first = (await metadata.users(["admin"]))["admin"]
    assert set(first) == set(Mechanism)
    assert all(is_password_of(each, "secret") for each in first.values())
    await keep_admin(metadata, admin, is_ours=False)
    assert (await metadata.users(["admin"]))["admin"] == first
    # a user that somebody else made is left alone
    with pytest.raises(OtherAdminError, match=r"another password than admin\.properties"):
        await keep_admin(metadata, replace(admin, password="other"), is_ours=False)
    assert (await metadata.users(["admin"]))["admin"] == first
    await keep_admin(metadata, replace(admin, password="other"), is_ours=True)
    assert is_password_of((await metadata.users(["admin"]))["admin"][Mechanism.SCRAM_SHA_256], "other")
    # half of it is made whole
    await metadata.alter_users([UserChange(name="admin", mechanism=Mechanism.SCRAM_SHA_512, credential=None)])
    await keep_admin(metadata, replace(admin, password="other"), is_ours=True)
    assert set((await metadata.users(["admin"]))["admin"]) == set(Mechanism)
    weak = credential_of(Mechanism.SCRAM_SHA_512, "x", salt=b"x")
    await metadata.alter_users([UserChange(name="admin", mechanism=Mechanism.SCRAM_SHA_512, credential=weak)])
    with pytest.raises(OtherAdminError):
        await keep_admin(metadata, replace(admin, password="other"), is_ours=False)


def test_a_listener_of_the_users_own_keeps_what_it_says(tmp_path: Path) -> None:
    more = {"listener.default.tls.version.min": "1.3", "listener.default.address": "127.0.0.1:9999"}
    (listener,) = settings_of(tmp_path, **more).listeners
    assert listener == ListenerSettings(
        name="default",
        address="127.0.0.1:9999",
        protocol="SASL_SSL",
        tls_cert_file=str(tmp_path / "certificates" / "server.pem"),
        tls_key_file=str(tmp_path / "certificates" / "server.key"),
        tls_version_min="1.3",
    )
