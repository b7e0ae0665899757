variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "existing" {
  description = "An existing Postgres. Null: one is made."
  type = object({
    host              = string
    port              = number
    database          = string
    user              = string
    secret_arn        = string
    security_group_id = string
    ca_path           = string
  })
}

variable "instance" {
  description = "The Postgres to make."
  type = object({
    instance_class       = string
    engine_version       = string
    storage_gib          = number
    multi_az             = bool
    maintenance_window   = string
    backup_window        = string
    performance_insights = bool
  })
}

variable "vpc_id" {
  description = "The VPC."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets in at least two zones."
  type        = list(string)
}

variable "task_security_group_id" {
  description = "Security group of the tasks that may connect."
  type        = string
}

variable "kms_key_arn" {
  description = "KMS key for storage and secret. Null: the account's keys of RDS and Secrets Manager."
  type        = string
}

variable "log_retention_days" {
  description = "Days for which the logs of Postgres are kept."
  type        = number
}

variable "deletion_protection" {
  description = "Whether the instance refuses to be deleted, and a final snapshot is kept."
  type        = bool
}

variable "tags" {
  description = "Tags of everything that can have some."
  type        = map(string)
}
