"""List prices of AWS for `siltstone cost`: dated, with their source. Never fetched.

us-east-1, on demand, in US dollars, without taxes, volume tiers and discounts. `source` is the vendor's page, which is
authoritative. `seen` is where the figure was read; it is empty if nobody looked the figure up for this table, which
then holds the last figure known to us. Each may be replaced: `siltstone cost --price s3.put.1000=0.0054`.

The prices of S3 Express One Zone are those since April 2025, from the worked examples of AWS's S3 FAQ. Bytes cost there
on the way in and out, from the first one on.

"GB" on a bill of AWS is 2^30 bytes: GiB here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

AS_OF = "2026-06"
REGION = "us-east-1"

_S3 = "aws.amazon.com/s3/pricing"
_EXPRESS = "aws.amazon.com/s3/faqs"
"""The worked examples of S3 Express One Zone: 1 M PUTs, 9 M GETs and 10 GB-months, with the charges for bytes."""
_FARGATE = "aws.amazon.com/fargate/pricing"
_EC2 = "aws.amazon.com/ec2/pricing/on-demand"
_EBS = "aws.amazon.com/ebs/pricing"
_RDS = "aws.amazon.com/rds/postgresql/pricing"
_EMR = "aws.amazon.com/emr/pricing"
_ELB = "aws.amazon.com/elasticloadbalancing/pricing"
_VPC = "aws.amazon.com/privatelink/pricing"


@dataclass(frozen=True, slots=True)
class Price:
    usd: float
    unit: str
    source: str
    seen: str = ""


PRICES: Mapping[str, Price] = {
    "s3.put.1000": Price(0.005, "1,000 PUT, POST, LIST; a part of an upload is a PUT", _S3, "go-cloud.io, 2025"),
    "s3.get.1000": Price(0.0004, "1,000 GET, HEAD", _S3, "awsnegotiations.com, 2026-05"),
    "s3.standard.gib.month": Price(0.023, "GiB-month, the first 50 TB", _S3, "go-cloud.io, 2025"),
    "s3.standard.ia.gib.month": Price(0.0125, "GiB-month", _S3),
    "s3.standard.ia.get.1000": Price(0.001, "1,000 GET", _S3),
    "s3.standard.ia.retrieval.gib": Price(0.01, "GiB read", _S3),
    "s3.standard.ia.transition.1000": Price(0.01, "1,000 objects moved into it", _S3),
    "s3.glacier.ir.gib.month": Price(0.004, "GiB-month", _S3),
    "s3.glacier.ir.get.1000": Price(0.01, "1,000 GET", _S3),
    "s3.glacier.ir.retrieval.gib": Price(0.03, "GiB read", _S3),
    "s3.glacier.ir.transition.1000": Price(0.02, "1,000 objects moved into it", _S3),
    "s3.tiering.infrequent.gib.month": Price(0.0125, "GiB-month, not read for 30 days", _S3),
    "s3.tiering.archive.gib.month": Price(0.004, "GiB-month, not read for 90 days", _S3),
    "s3.tiering.monitoring.1000": Price(0.0025, "1,000 objects, a month", _S3, "usage.ai, 2026-06"),
    "s3.tiering.transition.1000": Price(0.01, "1,000 objects moved into it", _S3),
    "s3.express.put.1000": Price(0.00113, "1,000 PUT, POST, LIST", _S3, _EXPRESS),
    "s3.express.get.1000": Price(0.00003, "1,000 GET, HEAD", _S3, _EXPRESS),
    "s3.express.upload.gib": Price(0.0032, "GiB uploaded", _S3, _EXPRESS),
    "s3.express.retrieval.gib": Price(0.0006, "GiB read", _S3, _EXPRESS),
    "s3.express.gib.month": Price(0.11, "GiB-month, in one zone", _S3, _EXPRESS),
    "zones.gib": Price(0.02, "GiB between zones, 0.01 on each side", _EC2, "finopsforge.com, 2026"),
    "fargate.vcpu.hour": Price(0.04048, "vCPU-hour, Linux on x86", _FARGATE, "vantage.sh, wring.co, 2026-03"),
    "fargate.gib.hour": Price(0.004445, "GiB-hour of memory, Linux on x86", _FARGATE, "vantage.sh, wring.co, 2026-03"),
    "fargate.arm.vcpu.hour": Price(0.03238, "vCPU-hour, Linux on ARM", _FARGATE, "vantage.sh"),
    "fargate.arm.gib.hour": Price(0.00356, "GiB-hour of memory, Linux on ARM", _FARGATE, "vantage.sh"),
    "ec2.host.hour": Price(0.0816, "m7g.large, 2 vCPU and 8 GiB, an hour", _EC2, "factualminds.com, 2026-06"),
    "ebs.gp3.gib.month": Price(0.08, "GiB-month", _EBS),
    "ebs.gp3.mib.s.month": Price(0.04, "MiB/s above 125 of a volume, a month", _EBS),
    "rds.vcpu.hour": Price(0.084, "vCPU-hour of a db.m7g, one zone (0.168 a .large)", _RDS),
    "rds.gp3.gib.month": Price(0.115, "GiB-month, one zone", _RDS, "usage.ai, 2026-06"),
    "emr.vcpu.hour": Price(0.052624, "vCPU-hour of EMR Serverless, x86", _EMR),
    "emr.gib.hour": Price(0.0057785, "GiB-hour of its memory, x86", _EMR),
    "nlb.hour": Price(0.0225, "network load balancer, an hour", _ELB, "clustercost.com, 2025"),
    "nlb.nlcu.hour": Price(0.006, "its capacity unit, an hour", _ELB, "awsnegotiations.com, 2026"),
    "endpoint.hour": Price(0.01, "interface endpoint in one zone, an hour", _VPC, "finopsforge.com, 2026"),
}
