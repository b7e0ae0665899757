"""Makes a bucket unless it exists: `create_bucket.py ENDPOINT BUCKET`, with credentials from the AWS variables."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import sys
from typing import Any

import boto3
from botocore.exceptions import ClientError

THERE_ALREADY = frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists"})


def create(endpoint: str, bucket: str) -> None:
    """Raises ClientError."""
    client: Any = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    try:
        client.create_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") not in THERE_ALREADY:
            raise


if __name__ == "__main__":
    create(*sys.argv[1:])
