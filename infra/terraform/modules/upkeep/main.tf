# Tasks that AWS starts by itself: the migration, whenever new agents are rolled out, and a restore drill, by the calendar.
# Both run the admin task, as commands run by hand do.
#
# ECS tells EventBridge of each rollout, and EventBridge starts the migration. So `terraform apply` needs nothing on the
# machine where it runs, and a rollout by other means migrates too. Agents and compactors wait for the schema, so the
# order of both does not matter. Old programs go on with the new schema, or the migration refuses and changes nothing;
# then new tasks never become ready, and ECS goes back to the old ones.

data "aws_partition" "current" {}

data "aws_region" "current" {}

data "aws_caller_identity" "current" {}

locals {
  account        = data.aws_caller_identity.current.account_id
  agents_service = "arn:${data.aws_partition.current.partition}:ecs:${data.aws_region.current.id}:${local.account}:service/${var.cluster.name}/${var.agents_service_name}"
}

resource "aws_cloudwatch_event_rule" "rollout" {
  name        = "${var.name}-rollout"
  description = "New agents of Siltstone ${var.name}: migrate the schema"

  event_pattern = jsonencode({
    source      = ["aws.ecs"]
    detail-type = ["ECS Deployment State Change"]
    resources   = [local.agents_service]
    detail      = { eventName = ["SERVICE_DEPLOYMENT_IN_PROGRESS"] }
  })

  tags = var.tags
}

resource "aws_cloudwatch_event_target" "migrate" {
  rule     = aws_cloudwatch_event_rule.rollout.name
  arn      = var.cluster.arn
  role_arn = aws_iam_role.events.arn

  ecs_target {
    task_definition_arn = var.admin_task_arn # with its revision, and so with the image of this apply
    task_count          = 1

    capacity_provider_strategy {
      capacity_provider = var.cluster.capacity_provider
      weight            = 1
    }

    network_configuration {
      subnets          = var.subnet_ids
      security_groups  = var.security_group_ids
      assign_public_ip = false
    }
  }

  # for as long as ECS lacks the capacity
  retry_policy {
    maximum_event_age_in_seconds = 3600
    maximum_retry_attempts       = 60
  }
}

resource "aws_cloudwatch_event_rule" "drill" {
  count = var.restore_drill_schedule == null ? 0 : 1

  name                = "${var.name}-restore-drill"
  description         = "Rebuild the metadata of Siltstone ${var.name} from the bucket, and compare"
  schedule_expression = var.restore_drill_schedule

  tags = var.tags
}

resource "aws_cloudwatch_event_target" "drill" {
  count = var.restore_drill_schedule == null ? 0 : 1

  rule     = aws_cloudwatch_event_rule.drill[0].name
  arn      = var.cluster.arn
  role_arn = aws_iam_role.events.arn
  # It holds the whole catalogue in memory, as `rebuild` does. On EC2 a host must have that much.
  input = jsonencode({
    cpu                = "2048"
    memory             = "4096"
    containerOverrides = [{ name = "admin", command = ["drill"] }]
  })

  ecs_target {
    task_definition_arn = var.admin_task_arn
    task_count          = 1

    capacity_provider_strategy {
      capacity_provider = var.cluster.capacity_provider
      weight            = 1
    }

    network_configuration {
      subnets          = var.subnet_ids
      security_groups  = var.security_group_ids
      assign_public_ip = false
    }
  }
}
