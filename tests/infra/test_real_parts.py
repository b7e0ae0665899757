"""The parts of a run with the real provider that can be tested without it: where it is looked for, what an account
has, and what a second plan may change.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from infra.check import __main__ as command
from infra.check.real import mirror
from infra.check.real.account import Account
from infra.check.real.drift import changes
from infra.check.real.mirror import NoProvider, mirror_at_hand, mirror_in
from infra.check.schemas import __main__ as schemas
from infra.check.stand_in.schema import SCHEMAS

SYSTEM = f"{platform.system().lower()}_{mirror.ARCHITECTURES[platform.machine().lower()]}"


def unpacked(folder: Path, *versions: str, system: str = SYSTEM) -> Path:
    for version in versions:
        program = folder / mirror.PROVIDER / version / system / f"terraform-provider-aws_v{version}_x5"
        program.parent.mkdir(parents=True)
        program.touch()
    return folder


def test_terraform_takes_the_newest_that_the_configuration_allows(tmp_path: Path) -> None:
    found = mirror_in(unpacked(tmp_path / "all", "5.100.0", "6.9.0", "6.25.1", "7.0.0"))
    assert found is not None and found.version == "6.25.1"
    settings = found.settings(tmp_path)
    assert f'path = "{found.folder}"' in Path(settings["TF_CLI_CONFIG_FILE"]).read_text()


def test_mirrors_that_terraform_cannot_use_in_place_are_none(tmp_path: Path) -> None:
    assert mirror_in(tmp_path / "absent") is None
    assert mirror_in(unpacked(tmp_path / "other", "5.100.0", system="plan9_mips")) is None
    assert mirror_in(unpacked(tmp_path / "newer", "7.1.0")) is None
    packed = tmp_path / "packed" / mirror.PROVIDER
    packed.mkdir(parents=True)
    (packed / f"terraform-provider-aws_5.100.0_{SYSTEM}.zip").touch()
    assert mirror_in(tmp_path / "packed") is None


def test_a_mirror_is_looked_for_where_somebody_says_and_else_in_the_usual_places(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual, named, given = (unpacked(tmp_path / name, f"5.10{n}.0") for n, name in enumerate("abc"))
    monkeypatch.setattr(mirror, "PLACES", (str(tmp_path / "none"), str(usual)))
    monkeypatch.delenv(mirror.VARIABLE, raising=False)
    versions = [mirror_at_hand()]
    monkeypatch.setenv(mirror.VARIABLE, str(named))
    versions += [mirror_at_hand(), mirror_at_hand(given)]
    assert [found and found.version for found in versions] == ["5.100.0", "5.101.0", "5.102.0"]
    # an empty variable says that there is none; a wrong one is a mistake
    monkeypatch.setenv(mirror.VARIABLE, "")
    assert mirror_at_hand() is None
    monkeypatch.setenv(mirror.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(NoProvider, match="none holds no unpacked"):
        mirror_at_hand()


def test_a_mirror_that_is_named_and_empty_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--mirror", str(tmp_path)]) in (0, 2)  # 0: no Terraform at all
    said = capsys.readouterr().out
    assert "holds no unpacked" in said or "NOT RUN" in said


def test_schemas_are_left_alone_where_no_provider_tells_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = SCHEMAS.read_bytes()
    monkeypatch.setenv(mirror.VARIABLE, "")
    assert schemas.main([]) == 1
    assert "nothing was written" in capsys.readouterr().err and SCHEMAS.read_bytes() == before


def test_schemas_name_the_types_that_a_provider_lacks() -> None:
    block = {"block": {"attributes": {"name": {"type": "string", "required": True}}}}
    told = {"provider": block, "resource_schemas": {"aws_a": block}, "data_source_schemas": {}}
    document = {"provider_schemas": {"registry.terraform.io/hashicorp/aws": told}}
    kept = schemas.kept(document, "5.0.0", {"aws_a"}, set())
    assert kept["resources"] == {"aws_a": {"attributes": {"name": ["string", "required"]}, "blocks": {}}}
    with pytest.raises(NoProvider, match="has no aws_b"):
        schemas.kept(document, "5.0.0", {"aws_a", "aws_b"}, set())


def test_values_name_what_the_account_has(tmp_path: Path) -> None:
    known = {"vpc-": ["vpc-1"], "subnet-": ["subnet-1", "subnet-2"], "sg-": ["sg-1"], "key/": ["key/k"]}
    (tmp_path / "some").mkdir()
    file = tmp_path / "some" / "root.tfvars"
    file.write_text(
        'vpc_id = "vpc-0123456789abcdef0"\n'
        'subnet_ids = ["subnet-0123456789abcdef1", "subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]\n'
        'kms_key_arn = "arn:aws:kms:eu-central-1:123456789012:key/6f1f3c1e-8a41-4a0c-9d3b-2f6f0c7f4f10"\n'
        'security_group_id = "sg-0123456789abcdef0"\nname = "my-sg-cluster"\n'
    )
    Account("http://127.0.0.1:1", known).settle(tmp_path)
    assert file.read_text() == (
        'vpc_id = "vpc-1"\nsubnet_ids = ["subnet-1", "subnet-2", "subnet-1"]\n'
        'kms_key_arn = "arn:aws:kms:eu-central-1:123456789012:key/k"\n'
        'security_group_id = "sg-1"\nname = "my-sg-cluster"\n'
    )


def change(kind: str, before: object, after: object, action: str = "update", **unknown: bool) -> dict[str, Any]:
    told = {"actions": [action], "before": before, "after": after, "after_unknown": unknown}
    return {"mode": "managed", "type": kind, "address": f"{kind}.this", "change": told}


def test_a_second_plan_may_change_what_moto_forgot_and_nothing_else() -> None:
    told = [
        change("aws_lb", {"name": "a"}, {"name": "a"}, action="no-op"),
        change("aws_ecs_service", {"tags": {}, "id": "1"}, {"tags": None}, id=True),
        change("aws_ecs_service", {"tags": {}, "name": "a"}, {"tags": None, "name": "b"}),
        change("aws_lb", {"tags": {"At": "1"}, "name": "a"}, {"name": "a"}, tags=True),
        change("aws_lb", None, {"name": "a"}, action="create"),
        change("aws_lb", {"name": "a"}, None, action="delete"),
        {**change("aws_region", {}, {"id": "x"}), "mode": "data"},
    ]
    found = list(changes({"resource_changes": told}))
    assert found == [
        ("aws_ecs_service.this", ["name"]),
        ("aws_lb.this", ["tags"]),
        ("aws_lb.this", ["name"]),
        ("aws_lb.this", ["name"]),
    ]
