variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "cluster" {
  description = "The ECS cluster, and the capacity on which its tasks run."
  type = object({
    arn               = string
    name              = string
    capacity_provider = string
  })
}

variable "admin_task_arn" {
  description = "Task definition of commands run by hand, whose own command is `migrate`: its ARN with the revision."
  type        = string
}

variable "admin_task_family" {
  description = "The family of that task definition."
  type        = string
}

variable "admin_role_arns" {
  description = "The two roles of that task definition."
  type        = list(string)
}

variable "agents_service_name" {
  description = "The service whose rollouts migrate the schema."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets."
  type        = list(string)
}

variable "security_group_ids" {
  description = "Security groups of the tasks."
  type        = list(string)
}

variable "restore_drill_schedule" {
  description = "When to run the restore drill, as EventBridge writes it. Null: never."
  type        = string
}

variable "log_group_name" {
  description = "Log group of the tasks."
  type        = string
}

variable "alarm_topic_arns" {
  description = "ARNs of the SNS topics that hear of failures."
  type        = list(string)
}

variable "tags" {
  description = "Tags of everything that can have some."
  type        = map(string)
}

variable "permissions_boundary" {
  description = "ARN of the policy that bounds the rights of every role. Null: none."
  type        = string
}
