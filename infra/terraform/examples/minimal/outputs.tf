output "bootstrap_servers" {
  description = "Bootstrap servers for Kafka clients."
  value       = module.siltstone.bootstrap_servers
}

output "migrate_command" {
  description = "Each rollout of agents runs it by itself; by hand after one that failed."
  value       = module.siltstone.migrate_command
}

output "doctor_command" {
  description = "Command that checks whether everything is fit for use."
  value       = module.siltstone.doctor_command
}

output "admin_command" {
  description = "Shell code that defines ecs_siltstone: eval it, then run ecs_siltstone fsck --quick."
  value       = module.siltstone.admin_command
}

output "restart_commands" {
  description = "Commands that replace all tasks, for a new certificate."
  value       = module.siltstone.restart_commands
}

output "stop_commands" {
  description = "Commands that stop every agent, compactor and merge."
  value       = module.siltstone.stop_commands
}

output "start_commands" {
  description = "Commands that start everything after stop_commands."
  value       = module.siltstone.start_commands
}

output "log_groups" {
  description = "Log groups by process."
  value       = module.siltstone.log_groups
}

output "metadata_secret_arns" {
  description = "Secrets with the passwords of Postgres, by process."
  value       = module.siltstone.metadata_secret_arns
}

output "new_passwords_command" {
  description = "Command that gives agents and compactors new passwords, without a restart."
  value       = module.siltstone.new_passwords_command
}

output "network" {
  description = "The network, for peering and for other security groups."
  value       = module.siltstone.network
}

output "alarm_topic_arns" {
  description = "The topics that receive alarms: subscribe to the one that is made."
  value       = module.siltstone.alarm_topic_arns
}

output "quotas_needed" {
  description = "What the account's quotas must allow."
  value       = module.siltstone.quotas_needed
}
