variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "monitoring" {
  description = "What is told of the cluster, and to whom: `monitoring` of the root module."
  type = object({
    log_retention_days = number
    alarm_topic_arns   = list(string)
    alarm_emails       = list(string)
    group_lag_s        = number
    collector_image    = string
    probe_secret_arn   = string
  })
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

variable "tags" {
  description = "Tags of everything that can have some."
  type        = map(string)
}
