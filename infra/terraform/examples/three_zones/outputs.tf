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

output "restart_commands" {
  description = "Replace all tasks."
  value       = module.siltstone.restart_commands
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
