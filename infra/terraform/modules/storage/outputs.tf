output "bucket" {
  description = "Name of the bucket."
  value       = local.bucket
}

output "bucket_policy" {
  description = "The policy of the bucket that is made, or the one to give to an existing bucket."
  value       = data.aws_iam_policy_document.bucket.json
}

output "bucket_arn" {
  description = "ARN of the bucket."
  value       = local.bucket_arn
}
