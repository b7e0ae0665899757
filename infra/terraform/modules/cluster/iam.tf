# The execution role: what ECS itself may do to start a task and to write its log. The roles of the tasks are defined
# next to the tasks.

data "aws_iam_policy_document" "tasks_trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ecs-tasks.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

data "aws_iam_policy_document" "execution" {
  # This action cannot be limited to a resource. The token alone gives no access: the next statement says to what.
  statement {
    sid       = "RegistryToken"
    actions   = ["ecr:GetAuthorizationToken"]
    resources = ["*"]
  }

  # Any account and region, because the image may be in a registry of another account; its own policy decides then.
  statement {
    sid       = "PullImage"
    actions   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    resources = ["arn:${data.aws_partition.current.partition}:ecr:*:*:repository/*"]
  }

  statement {
    sid       = "WriteLogs"
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents"]
    resources = [for arn in var.log_group_arns : "${arn}:*"]
  }

  statement {
    sid       = "PasswordsAndKeys"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = var.secret_arns
  }

  dynamic "statement" {
    for_each = var.bucket.kms_key_arn == null ? [] : [var.bucket.kms_key_arn]

    content {
      sid       = "DecryptSecrets"
      actions   = ["kms:Decrypt"]
      resources = [statement.value]

      condition {
        test     = "StringEquals"
        variable = "kms:ViaService"
        values   = ["secretsmanager.${data.aws_region.current.id}.amazonaws.com"]
      }
    }
  }
}

resource "aws_iam_role" "execution" {
  name                 = "${var.name}-execution"
  description          = "ECS, on behalf of tasks of Siltstone ${var.name}"
  permissions_boundary = var.permissions_boundary
  assume_role_policy   = data.aws_iam_policy_document.tasks_trust.json

  tags = var.tags
}

resource "aws_iam_role_policy" "execution" {
  name   = "execution"
  role   = aws_iam_role.execution.id
  policy = data.aws_iam_policy_document.execution.json
}
