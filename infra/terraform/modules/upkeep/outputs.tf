output "cluster_arn" {
  description = "The cluster, once a rollout in it would be migrated: services that take it from here are rolled out afterwards."
  value       = var.cluster.arn

  depends_on = [aws_cloudwatch_event_target.migrate, aws_iam_role_policy.events]
}
