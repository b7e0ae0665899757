variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "log_retention_days" {
  description = "Days for which logs are kept."
  type        = number
}

variable "collector_image" {
  description = "Image of the AWS Distro for OpenTelemetry. Null: no collector runs beside the tasks."
  type        = string
}

variable "alarm_topic_arns" {
  description = "ARNs of the SNS topics that receive alarms."
  type        = list(string)
}

variable "database" {
  description = "The RDS instance to watch. Null: the Postgres was not made here."
  type = object({
    instance_identifier = string
    storage_gib         = number
  })
}

variable "load_balancer" {
  description = "Names in CloudWatch of the agents' load balancer and of its target group."
  type = object({
    load_balancer = string
    target_group  = string
  })
}

variable "agents_min" {
  description = "The alarm rings when fewer agents are ready."
  type        = number
}
