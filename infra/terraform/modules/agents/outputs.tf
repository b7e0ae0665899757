output "bootstrap_servers" {
  description = "Bootstrap servers for Kafka clients."
  value       = "${aws_lb.bootstrap.dns_name}:${local.kafka_port}"
}

output "service_name" {
  description = "The service in ECS."
  value       = aws_ecs_service.this.name
}

output "security_group_id" {
  description = "Security group of the agents."
  value       = aws_security_group.agents.id
}

output "admin_security_group_id" {
  description = "Security group that may reach agents, for commands run by hand."
  value       = aws_security_group.admin.id
}

output "role_arn" {
  description = "Role of the agents."
  value       = aws_iam_role.task.arn
}

output "load_balancer" {
  description = "Names in CloudWatch of the load balancer and of its target group."
  value = {
    load_balancer = aws_lb.bootstrap.arn_suffix
    target_group  = aws_lb_target_group.bootstrap.arn_suffix
  }
}
