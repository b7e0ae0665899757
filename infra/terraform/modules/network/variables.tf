variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "existing" {
  description = "A VPC that is there already. Null: one is made."
  type = object({
    vpc_id          = string
    subnet_ids      = list(string)
    route_table_ids = list(string)
  })
}

variable "availability_zones" {
  description = "Zones of the subnets that are made, one each. Not used with an existing VPC."
  type        = list(string)

  validation {
    condition     = length(distinct(var.availability_zones)) == length(var.availability_zones)
    error_message = "availability_zones names a zone twice."
  }
}

variable "vpc_cidr" {
  description = "Addresses of the VPC that is made. Not used with an existing VPC."
  type        = string
}

variable "endpoint_services" {
  description = "Services that get an interface endpoint in the VPC that is made, as in com.amazonaws.REGION.SERVICE."
  type        = set(string)
}
