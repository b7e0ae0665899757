# Logs of all tasks, and a managed Prometheus if there is a collector. Alarms only for what CloudWatch alone can see:
# Siltstone's own metrics and infra/prometheus/alerts.yml cover the rest.

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
