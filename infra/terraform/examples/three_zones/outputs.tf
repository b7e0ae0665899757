output "bootstrap_servers" {
  description = "What Kafka clients are given."
  value       = module.siltstone.bootstrap_servers
}

output "migrate_command" {
  description = "Run it once after the first apply, then the commands of restart_commands; and before each upgrade."
  value       = module.siltstone.migrate_command
}

output "doctor_command" {
  description = "Is all fit for use?"
  value       = module.siltstone.doctor_command
}

output "admin_command" {
  description = "Defines ecs_siltstone in a shell: eval it, then ecs_siltstone fsck --quick."
  value       = module.siltstone.admin_command
}

output "restart_commands" {
  description = "Replace all tasks."
  value       = module.siltstone.restart_commands
}

output "stop_commands" {
  description = "End every agent, compactor and merge."
  value       = module.siltstone.stop_commands
}

output "start_commands" {
  description = "After stop_commands."
  value       = module.siltstone.start_commands
}

output "log_groups" {
  description = "Log groups by process."
  value       = module.siltstone.log_groups
}

output "metadata_secret_arn" {
  description = "Secret with the password of Postgres."
  value       = module.siltstone.metadata_secret_arn
}

output "spark_upload_commands" {
  description = "Put the program of merges where EMR Serverless finds it."
  value       = module.siltstone.spark_upload_commands
}

output "network" {
  description = "For peering, and for other security groups."
  value       = module.siltstone.network
}

output "prometheus_endpoint" {
  description = "For Grafana."
  value       = module.siltstone.prometheus_endpoint
}
