output "vpc_id" {
  description = "The VPC."
  value       = local.vpc_id
}

output "subnet_ids" {
  description = "Private subnets, one per zone."
  value       = local.subnet_ids
}

output "route_table_ids" {
  description = "Route tables that get the route to S3."
  value       = local.route_table_ids
}

output "task_security_group_id" {
  description = "Security group of every task."
  value       = aws_security_group.tasks.id
}
