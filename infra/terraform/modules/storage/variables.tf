variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "existing_bucket" {
  description = "An existing bucket, whose configuration is not changed. Null: one is made."
  type        = string
}

variable "prefix" {
  description = "Prefix of the records in the bucket."
  type        = string
}

variable "second_is_directory" {
  description = "Whether the L0 files lie in a directory bucket, which has an endpoint of its own."
  type        = bool
}

variable "kms_key_arn" {
  description = "KMS key for objects. Null: keys that S3 manages (SSE-S3)."
  type        = string
}

variable "noncurrent_days" {
  description = "Days for which deleted objects can be restored. 0: the bucket is not versioned."
  type        = number
}

variable "deletion_protection" {
  description = "Whether Terraform refuses to delete a bucket that holds objects."
  type        = bool
}

variable "vpc_id" {
  description = "The VPC that gets a gateway endpoint of S3."
  type        = string
}

variable "route_table_ids" {
  description = "Route tables that get a route to this endpoint. Empty: no endpoint is made, because the VPC already has one."
  type        = list(string)
}

variable "tags" {
  description = "Tags of everything that can have some."
  type        = map(string)
}
