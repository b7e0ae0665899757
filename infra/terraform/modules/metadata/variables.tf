variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "existing" {
  description = "A Postgres that is there already. Null: one is made."
  type = object({
    host              = string
    port              = number
    database          = string
    user              = string
    secret_arn        = string
    security_group_id = string
  })
}

variable "instance" {
  description = "The Postgres that is made."
  type = object({
    instance_class = string
    engine_version = string
    storage_gib    = number
    multi_az       = bool
  })
}

variable "ca_path" {
  description = "Certificates in the image by which Postgres is verified. Null: the connection is encrypted, the server not verified."
  type        = string
}

variable "vpc_id" {
  description = "The VPC."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets in two zones at least."
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

variable "deletion_protection" {
  description = "Whether the instance refuses to be deleted, and leaves a last snapshot."
  type        = bool
}
