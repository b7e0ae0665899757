output "bootstrap_servers" {
  description = "What Kafka clients are given."
  value       = module.siltstone.bootstrap_servers
}

output "migrate_command" {
  description = "Run it once after the first apply, then the commands of restart_commands."
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
