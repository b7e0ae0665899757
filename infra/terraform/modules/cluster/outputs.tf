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

output "admin_task" {
  description = "Task definition of commands run by hand: its ARN with the revision, its family, and its two roles."
  value = {
    arn       = aws_ecs_task_definition.admin.arn
    family    = aws_ecs_task_definition.admin.family
    role_arns = [aws_iam_role.admin.arn, aws_iam_role.execution.arn]
  }
}
