output "url" {
  description = "metadata.url, without the password."
  value       = "postgresql://${local.user}@${local.host}:${local.port}/${local.database}?${local.tls}"
}

output "secret_arn" {
  description = "Secret whose JSON has the password under `password`."
  value       = local.secret_arn
}

output "instance_identifier" {
  description = "The instance in RDS; null for an existing Postgres."
  value       = local.creates ? "${var.name}-metadata" : null
}
