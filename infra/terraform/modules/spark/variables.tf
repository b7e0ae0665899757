variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "bucket" {
  description = "ARNs of where the records are: the bucket, all objects below the prefix, the KMS key (or null), and the second bucket, for L0 files (or null)."
  type = object({
    arn         = string
    objects_arn = string
    kms_key_arn = string
    second = object({
      arn          = string
      objects_arn  = string
      is_directory = bool
    })
  })
}

variable "bucket_name" {
  description = "Name of the bucket."
  type        = string
}

variable "code_prefix" {
  description = "Prefix of the program and its archive in the bucket: beside the records, never below their prefix."
  type        = string
}

variable "release_label" {
  description = "EMR release with Spark 4."
  type        = string
}

variable "cpu_architecture" {
  description = "X86_64 or ARM64: the architecture on which the archive was packed."
  type        = string
}

variable "image" {
  description = "Image that contains Siltstone, built FROM the image of that release. Null: an archive is unpacked beside each executor."
  type        = string
}

variable "vcpu_max" {
  description = "Most vCPUs of all jobs together."
  type        = number
}

variable "tags" {
  description = "Tags of everything that can have some."
  type        = map(string)
}

variable "permissions_boundary" {
  description = "ARN of the policy that bounds the rights of every role. Null: none."
  type        = string
}
