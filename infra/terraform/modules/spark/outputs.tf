output "submission" {
  description = "The values that a compactor needs to submit merges."
  value = {
    application_id  = aws_emrserverless_application.this.id
    application_arn = aws_emrserverless_application.this.arn
    job_role_arn    = aws_iam_role.job.arn
    entry_url       = "s3://${var.bucket_name}/${var.code_prefix}/heavy_merge.py"
    archive_url     = var.image == null ? "s3://${var.bucket_name}/${var.code_prefix}/siltstone-spark.tar.gz" : ""
  }
}
