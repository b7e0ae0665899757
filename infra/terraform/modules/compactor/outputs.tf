output "service_name" {
  description = "The service in ECS."
  value       = aws_ecs_service.this.name
}

output "security_group_id" {
  description = "Security group of the compactors."
  value       = aws_security_group.compactor.id
}

output "role_arn" {
  description = "Role of the compactors, the only one that deletes records."
  value       = aws_iam_role.task.arn
}
