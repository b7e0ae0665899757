output "bucket" {
  description = "Name of the bucket."
  value       = local.bucket
}

output "bucket_arn" {
  description = "ARN of the bucket."
  value       = local.bucket_arn
}
