# What EventBridge may do: start the admin task, in this cluster, with its two roles. Nothing here waits for Postgres or the task
# definition, so that IAM knows these rights everywhere before the first rollout: EventBridge tries once where it is refused.

data "aws_iam_policy_document" "trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account]
    }
  }
}

data "aws_iam_policy_document" "events" {
  statement {
    sid       = "StartAdminTask"
    actions   = ["ecs:RunTask"]
    resources = ["arn:${data.aws_partition.current.partition}:ecs:${data.aws_region.current.id}:${local.account}:task-definition/${var.admin_task_family}:*"]

    condition {
      test     = "ArnEquals"
      variable = "ecs:cluster"
      values   = [var.cluster.arn]
    }
  }

  statement {
    sid       = "WithItsRoles"
    actions   = ["iam:PassRole"]
    resources = var.admin_role_arns

    condition {
      test     = "StringEquals"
      variable = "iam:PassedToService"
      values   = ["ecs-tasks.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "events" {
  name                 = "${var.name}-events"
  description          = "EventBridge, which starts migrations and drills of Siltstone ${var.name}"
  permissions_boundary = var.permissions_boundary
  assume_role_policy   = data.aws_iam_policy_document.trust.json

  tags = var.tags
}

resource "aws_iam_role_policy" "events" {
  name   = "events"
  role   = aws_iam_role.events.id
  policy = data.aws_iam_policy_document.events.json
}
