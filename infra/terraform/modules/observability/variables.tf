variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "log_retention_days" {
  description = "How long logs are kept."
  type        = number
}

variable "collector_image" {
  description = "Image of the AWS Distro for OpenTelemetry. Null: metrics are collected by somebody else."
  type        = string
}

variable "alarm_topic_arns" {
  description = "SNS topics that are told of alarms."
  type        = list(string)
}

variable "database" {
  description = "The instance of RDS that is watched. Null: the Postgres is not ours."
  type = object({
    instance_identifier = string
    storage_gib         = number
  })
}

variable "load_balancer" {
  description = "The load balancer of the agents as CloudWatch names it."
  type = object({
    load_balancer = string
    target_group  = string
  })
}

variable "agents_min" {
  description = "How many agents there should be at least."
  type        = number
}
