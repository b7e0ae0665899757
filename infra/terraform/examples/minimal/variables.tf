variable "region" {
  description = "AWS region."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region must be an AWS region, like eu-central-1."
  }
}

variable "image" {
  description = "Image of Siltstone in ECR of that region."
  type        = string

  validation {
    condition     = can(regex("\\.dkr\\.ecr\\.${var.region}\\.", var.image))
    error_message = "image must lie in ECR of var.region (${var.region}), which is part of the registry's host name: the VPC can reach no other registry."
  }
}

variable "listener_secret_arn" {
  description = "Secret whose JSON has `certificate` and `key` (PEM) of the agents."
  type        = string

  validation {
    condition     = can(regex("^arn:[a-z-]+:secretsmanager:", var.listener_secret_arn))
    error_message = "listener_secret_arn must be the ARN of a secret in Secrets Manager."
  }
}

variable "admin_secret_arn" {
  description = "Secret whose JSON has `client.properties` and its files, by which commands by hand connect to agents."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^arn:[a-z-]+:secretsmanager:", var.admin_secret_arn))
    error_message = "admin_secret_arn must be the ARN of a secret in Secrets Manager."
  }
}

variable "alarm_emails" {
  description = "Who receives alarms, once the address has confirmed the mail that AWS sends it."
  type        = list(string)

  validation {
    condition     = length(var.alarm_emails) > 0
    error_message = "alarm_emails must name an address: without one, nobody is notified of alarms."
  }
}
