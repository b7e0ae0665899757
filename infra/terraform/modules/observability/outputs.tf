output "log_group_arns" {
  description = "ARNs of the log groups of all tasks."
  value       = [for process in sort(tolist(local.log_groups)) : aws_cloudwatch_log_group.this[process].arn]
}

output "log_configurations" {
  description = "logConfiguration of the containers, by process."
  value       = local.log_configurations
}

output "log_group_names" {
  description = "Names of the log groups, by process."
  value       = { for process in local.log_groups : process => aws_cloudwatch_log_group.this[process].name }
}

output "collectors" {
  description = "Definitions of containers that run beside Siltstone's, by process."
  value       = local.collectors
}

output "workspace_arns" {
  description = "The workspace of managed Prometheus; empty without one."
  value       = aws_prometheus_workspace.this[*].arn
}

output "workspace_endpoint" {
  description = "Query URL of managed Prometheus; null without one."
  value       = one(aws_prometheus_workspace.this[*].prometheus_endpoint)
}

output "alarm_topic_arns" {
  description = "The topics that receive alarms."
  value       = local.alarm_topic_arns
}
