variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "existing" {
  description = "An existing VPC. Null: one is made."
  type = object({
    vpc_id          = string
    subnet_ids      = list(string)
    route_table_ids = list(string)
  })
}

variable "availability_zones" {
  description = "Zones of the subnets to make, one each. Not used with an existing VPC."
  type        = list(string)

  validation {
    condition     = length(distinct(var.availability_zones)) == length(var.availability_zones)
    error_message = "availability_zones names a zone twice."
  }
}

variable "vpc_cidr" {
  description = "Addresses of the VPC to make. Not used with an existing VPC."
  type        = string
}

variable "endpoint_services" {
  description = "AWS services that get an interface endpoint in the VPC made here: each is the SERVICE of com.amazonaws.REGION.SERVICE."
  type        = set(string)
}

variable "tags" {
  description = "Tags of everything that can have some."
  type        = map(string)
}
