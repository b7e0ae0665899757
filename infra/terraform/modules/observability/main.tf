# Logs of all tasks, alarms of what only CloudWatch sees, and managed Prometheus where it is wanted. Everything else is
# in our own metrics.

locals {
  log_groups = toset(["agent", "compactor", "admin"])
}

data "aws_region" "current" {}

resource "aws_cloudwatch_log_group" "this" {
  for_each = local.log_groups

  name              = "/siltstone/${var.name}/${each.key}"
  retention_in_days = var.log_retention_days
}

resource "aws_prometheus_workspace" "this" {
  count = var.collector_image == null ? 0 : 1

  alias = var.name
}
