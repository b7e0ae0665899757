# Logs of all tasks, alarms, and a managed Prometheus if there is a collector. Alarms are of what CloudWatch sees by itself
# (alarms.tf) and of the figures in the logs (figures.tf); managed Prometheus evaluates all rules of infra/prometheus.

locals {
  log_groups = toset(concat(["agent", "compactor", "admin"], var.monitoring.probe_secret_arn == null ? [] : ["probe"]))
}

data "aws_region" "current" {}

resource "aws_cloudwatch_log_group" "this" {
  for_each = local.log_groups

  name              = "/siltstone/${var.name}/${each.key}"
  retention_in_days = var.monitoring.log_retention_days

  tags = var.tags
}
