variable "region" {
  description = "AWS region."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region must be an AWS region, like eu-central-1."
  }
}

variable "image" {
  description = "Image of Siltstone for ARM64 in ECR of that region."
  type        = string

  validation {
    condition     = can(regex("\\.dkr\\.ecr\\.${var.region}\\.", var.image))
    error_message = "image must lie in ECR of var.region (${var.region}), which is part of the registry's host name: the VPC can reach no other registry."
  }
}

variable "collector_image" {
  description = "Image of the AWS Distro for OpenTelemetry in ECR of that region (a copy of public.ecr.aws/aws-observability/aws-otel-collector)."
  type        = string

  validation {
    condition     = can(regex("\\.dkr\\.ecr\\.${var.region}\\.", var.collector_image))
    error_message = "collector_image must lie in ECR of var.region (${var.region}): the VPC can reach no other registry."
  }
}

variable "kms_key_arn" {
  description = "KMS key for records, Postgres and its secret."
  type        = string

  validation {
    condition     = can(regex("^arn:[a-z-]+:kms:${var.region}:", var.kms_key_arn))
    error_message = "kms_key_arn must be the ARN of a key of that region."
  }
}

variable "alarm_topic_arns" {
  description = "ARNs of the SNS topics that receive alarms."
  type        = list(string)

  validation {
    condition     = length(var.alarm_topic_arns) > 0
    error_message = "alarm_topic_arns must name a topic: without one, nobody is notified of alarms."
  }
}

variable "listener_secret_arn" {
  description = "Secret whose JSON has `certificate` and `key` of the agents and `ca` of their clients (PEM)."
  type        = string

  validation {
    condition     = can(regex("^arn:[a-z-]+:secretsmanager:", var.listener_secret_arn))
    error_message = "listener_secret_arn must be the ARN of a secret in Secrets Manager."
  }
}

variable "admin_secret_arn" {
  description = "ARN of the secret whose JSON has `client.properties` and its files, by which commands by hand connect to agents."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^arn:[a-z-]+:secretsmanager:", var.admin_secret_arn))
    error_message = "admin_secret_arn must be the ARN of a secret in Secrets Manager."
  }
}

variable "probe_secret_arn" {
  description = "ARN of the secret whose JSON has `client.properties` and its files, by which the probe connects as a Kafka client."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^arn:[a-z-]+:secretsmanager:", var.probe_secret_arn))
    error_message = "probe_secret_arn must be the ARN of a secret in Secrets Manager."
  }
}

variable "permissions_boundary" {
  description = "ARN of the policy that bounds the rights of every role."
  type        = string
  default     = null

  validation {
    condition     = var.permissions_boundary == null || can(regex("^arn:[a-z-]+:iam::", var.permissions_boundary))
    error_message = "permissions_boundary must be the ARN of a policy."
  }
}
