"""The parts of the stand-in for the AWS provider that can be tested without Terraform."""

from __future__ import annotations

import json

import pytest

from infra.check import iam
from infra.check.stand_in import plausible
from infra.check.stand_in.schema import Attribute, Block, DamagedSchema, NestedBlock, type_from, type_json
from infra.check.stand_in.values import UNKNOWN, DamagedMessage, Value, decoded, encoded, message, parsed, text_field


def test_types_are_read_and_written_in_json() -> None:
    told = ["set", ["object", {"name": "string", "values": ["list", "string"]}]]
    assert type_json(type_from(told)) == told


@pytest.mark.parametrize("told", ["text", ["list"], ["tuple", "string"], ["object", "string"], None], ids=str)
def test_types_that_terraform_does_not_have_are_refused(told: object) -> None:
    with pytest.raises(DamagedSchema):
        type_from(told)


@pytest.mark.parametrize("value", [None, True, 5, 2.5, "text", ["a", UNKNOWN], {"a": {"b": [1, None]}}], ids=str)
def test_values_go_both_ways(value: Value) -> None:
    assert decoded(encoded(value)) == value


def test_messages_go_both_ways_and_cut_ones_are_refused() -> None:
    sent = message((1, "name"), (2, 300), (3, False), (4, b""))
    fields = parsed(sent)
    assert text_field(fields, 1) == "name" and fields[2] == [300] and 3 not in fields and fields[4] == [b""]
    with pytest.raises(DamagedMessage):
        parsed(sent[:3])


def test_what_is_computed_is_unknown_in_a_plan_and_there_after_an_apply() -> None:
    # given a bucket with a computed attribute at the top and one in a block
    computed = Attribute("string", required=False, optional=False, computed=True, sensitive=False)
    given = Attribute("string", required=False, optional=True, computed=False, sensitive=False)
    block = Block({"arn": computed, "bucket": given}, {"rule": NestedBlock("list", 0, 0, Block({"id": computed}, {}))})
    # when it is planned, then applied
    plan = plausible.planned(block, {"arn": None, "bucket": "records", "rule": [{"id": None}]})
    state = plausible.applied(block, "aws_s3_bucket", plan)
    # then
    assert plan == {"arn": UNKNOWN, "bucket": "records", "rule": [{"id": UNKNOWN}]}
    assert state["arn"] == "arn:aws:s3:::records"
    assert plausible.known(state)


def test_a_policy_document_is_what_the_provider_makes_of_it() -> None:
    condition: Value = {"test": "Bool", "variable": "aws:SecureTransport", "values": ["false"]}
    statement: Value = {
        "sid": "TlsOnly",
        "effect": "Deny",
        "actions": ["s3:*"],
        "resources": ["arn:aws:s3:::b", "arn:aws:s3:::b/*"],
        "principals": [{"type": "*", "identifiers": ["*"]}],
        "condition": [condition],
    }
    document = json.loads(iam.rendered({"statement": [statement]}))
    assert document == {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "TlsOnly",
                "Effect": "Deny",
                "Action": "s3:*",
                "Resource": ["arn:aws:s3:::b/*", "arn:aws:s3:::b"],
                "Principal": "*",
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ],
    }


@pytest.mark.parametrize(
    ("pattern", "action", "covered"),
    [
        ("s3:Delete*", "s3:DeleteObject", True),
        ("S3:deleteobject", "s3:DeleteObject", True),
        ("s3:DeleteObject?ersion", "s3:DeleteObjectVersion", True),
        ("*", "s3:DeleteObject", True),
        ("s3:GetObject", "s3:DeleteObject", False),
        ("s3:[D]eleteObject", "s3:DeleteObject", False),
    ],
)
def test_an_action_is_covered_as_iam_matches_it(pattern: str, action: str, covered: bool) -> None:
    assert iam.covers(pattern, action) is covered
