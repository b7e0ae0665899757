# What a merge does in the bucket: it reads files and its plan, and writes files and manifests. It cannot delete
# objects: the janitor removes the files of attempts that failed. Aborting its own uploads deletes no object.

data "aws_caller_identity" "current" {}

data "aws_iam_policy_document" "trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["emr-serverless.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

locals {
  # the second bucket: a directory bucket knows sessions, any other one rights for each request
  directory = [for each in var.bucket.second[*] : each if each.is_directory]
  second    = [for each in var.bucket.second[*] : each if !each.is_directory]
  name_file = [for each in var.bucket.second[*] : "${var.bucket.objects_arn}/second-store.json"]
}

data "aws_iam_policy_document" "job" {
  statement {
    sid     = "Read"
    actions = ["s3:GetObject"]
    resources = concat(
      [for key in ["l0/*", "l1/*", "l2/*", "jobs/*", "cluster.json"] : "${var.bucket.objects_arn}/${key}"],
      ["${var.bucket.arn}/${var.code_prefix}/*"],
    )
  }

  statement {
    sid       = "Write"
    actions   = ["s3:PutObject"]
    resources = [for key in ["l1/*", "l2/*", "jobs/*"] : "${var.bucket.objects_arn}/${key}"]
  }

  statement {
    sid       = "OwnUploads"
    actions   = ["s3:AbortMultipartUpload"]
    resources = [for key in ["l1/*", "l2/*"] : "${var.bucket.objects_arn}/${key}"]
  }

  # Without this right, S3 answers 403 and not 404 for a manifest that does not exist yet.
  statement {
    sid       = "TellGoneFromForbidden"
    actions   = ["s3:ListBucket"]
    resources = [var.bucket.arn]
  }

  dynamic "statement" {
    for_each = local.directory

    content {
      sid       = "SecondStoreSession"
      actions   = ["s3express:CreateSession"]
      resources = [statement.value.arn]
    }
  }

  dynamic "statement" {
    for_each = local.second

    content {
      sid       = "SecondStoreRead"
      actions   = ["s3:GetObject"]
      resources = [for key in ["l0/*", "cluster.json"] : "${statement.value.objects_arn}/${key}"]
    }
  }

  dynamic "statement" {
    for_each = local.second

    content {
      sid       = "SecondStoreList"
      actions   = ["s3:ListBucket"]
      resources = [statement.value.arn]
    }
  }

  # the file that names the second store
  dynamic "statement" {
    for_each = length(local.name_file) > 0 ? [local.name_file] : []

    content {
      sid       = "NameOfSecondStore"
      actions   = ["s3:GetObject"]
      resources = statement.value
    }
  }

  dynamic "statement" {
    for_each = var.bucket.kms_key_arn == null ? [] : [var.bucket.kms_key_arn]

    content {
      sid       = "Encryption"
      actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
      resources = [statement.value]
    }
  }
}

resource "aws_iam_role" "job" {
  name                 = "${var.name}-merge"
  description          = "Merges of Siltstone ${var.name} on Spark"
  permissions_boundary = var.permissions_boundary
  assume_role_policy   = data.aws_iam_policy_document.trust.json

  tags = var.tags
}

resource "aws_iam_role_policy" "job" {
  name   = "merge"
  role   = aws_iam_role.job.id
  policy = data.aws_iam_policy_document.job.json
}
