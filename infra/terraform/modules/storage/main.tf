# The bucket that holds the records, and a gateway endpoint, through which traffic to the bucket is free.
#
# In a versioned bucket, deleted topics and overwritten keys would stay readable after the janitor has deleted them. So
# noncurrent versions always expire, even if versioning is switched on only later, by somebody else.

locals {
  creates    = var.existing_bucket == null
  bucket     = local.creates ? aws_s3_bucket.this[0].bucket : var.existing_bucket
  bucket_arn = "arn:${data.aws_partition.current.partition}:s3:::${local.bucket}"
}

data "aws_region" "current" {}

data "aws_partition" "current" {}

data "aws_caller_identity" "current" {}

resource "aws_s3_bucket" "this" {
  count = local.creates ? 1 : 0

  # the name of a bucket must be unique among all AWS accounts
  bucket        = "${var.name}-${data.aws_caller_identity.current.account_id}-${data.aws_region.current.id}"
  force_destroy = !var.deletion_protection

  tags = var.tags
}

resource "aws_s3_bucket_public_access_block" "this" {
  count = local.creates ? 1 : 0

  bucket                  = aws_s3_bucket.this[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  count = local.creates ? 1 : 0

  bucket = aws_s3_bucket.this[0].id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  count = local.creates ? 1 : 0

  bucket = aws_s3_bucket.this[0].id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
    # without a bucket key, every PUT and GET causes a request to KMS, which is charged for
    bucket_key_enabled = var.kms_key_arn != null
  }
}

resource "aws_s3_bucket_versioning" "this" {
  count = local.creates && var.noncurrent_days > 0 ? 1 : 0

  bucket = aws_s3_bucket.this[0].id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  count = local.creates ? 1 : 0

  bucket = aws_s3_bucket.this[0].id

  rule {
    id     = "deleted-is-gone"
    status = "Enabled"

    filter {}

    noncurrent_version_expiration {
      noncurrent_days = max(var.noncurrent_days, 1)
    }

    expiration {
      expired_object_delete_marker = true
    }
  }

  # The janitor aborts uploads that are a day old; this rule is for a cluster whose janitor no longer runs. The time
  # must be longer than the longest merge: a shorter one would abort its upload.
  rule {
    id     = "abandoned-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  depends_on = [aws_s3_bucket_versioning.this]
}

resource "aws_s3_bucket_policy" "this" {
  count = local.creates ? 1 : 0

  bucket = aws_s3_bucket.this[0].id
  policy = data.aws_iam_policy_document.bucket.json

  depends_on = [aws_s3_bucket_public_access_block.this]
}

# Traffic between tasks and S3 is free through this endpoint. Without it, a NAT gateway charges for every byte.
resource "aws_vpc_endpoint" "s3" {
  count = length(var.route_table_ids) > 0 ? 1 : 0

  vpc_id            = var.vpc_id
  service_name      = "com.amazonaws.${data.aws_region.current.id}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = var.route_table_ids

  tags = merge(var.tags, { Name = "${var.name}-s3" })
}

# Directory buckets are another service to the network.
resource "aws_vpc_endpoint" "s3express" {
  count = var.second_is_directory && length(var.route_table_ids) > 0 ? 1 : 0

  vpc_id            = var.vpc_id
  service_name      = "com.amazonaws.${data.aws_region.current.id}.s3express"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = var.route_table_ids

  tags = merge(var.tags, { Name = "${var.name}-s3express" })
}
