output "urls" {
  description = "metadata.url by process, without passwords: owner (migrate and commands run by hand), agent, compactor. Those of agents and compactors name their secrets."
  value = merge(
    { owner = "postgresql://${local.user}@${local.place}" },
    { for process, role in local.roles : process => "postgresql://${role}@${local.place}&password_secret=${aws_secretsmanager_secret.role[process].arn}" },
  )
}

output "roles" {
  description = "Roles of Postgres by process."
  value       = local.roles
}

output "secret_arns" {
  description = "Secrets by process, whose JSON has the password under `password`."
  value       = merge({ owner = local.secret_arn }, { for process, secret in aws_secretsmanager_secret.role : process => secret.arn })
}

output "instance_identifier" {
  description = "The instance in RDS; null for an existing Postgres."
  value       = local.creates ? "${var.name}-metadata" : null
}
