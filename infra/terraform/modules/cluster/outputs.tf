output "arn" {
  description = "The cluster."
  value       = aws_ecs_cluster.this.arn
}

output "name" {
  description = "Name of the cluster."
  value       = aws_ecs_cluster_capacity_providers.this.cluster_name # not aws_ecs_cluster: services must wait until the capacity provider is attached
}

output "capacity_provider" {
  description = "The capacity on which services run."
  value       = local.capacity_provider
}

output "execution_role_arn" {
  description = "Role with which ECS starts tasks."
  value       = aws_iam_role.execution.arn
}

output "trust_policy" {
  description = "Policy by which ECS gives a role to tasks of this account."
  value       = data.aws_iam_policy_document.tasks_trust.json
}

output "admin_task_arn" {
  description = "Task definition of commands run by hand: its ARN with the revision."
  value       = aws_ecs_task_definition.admin.arn
}

output "admin_task_family" {
  description = "The family of that task definition, which is known before there is one."
  value       = local.admin_family
}

output "admin_role_arns" {
  description = "The two roles of that task definition."
  value       = [aws_iam_role.admin.arn, aws_iam_role.execution.arn]
}
