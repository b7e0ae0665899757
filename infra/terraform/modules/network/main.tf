# A VPC without any way to the internet, or somebody else's; and the security group of all our tasks.
#
# There is no internet gateway and no NAT: clients are not authenticated yet, so nothing here may be reachable from
# outside, and what tasks need of AWS they reach by endpoints (S3's lies in modules/storage).

locals {
  creates = var.existing == null
  zones   = { for index, zone in var.availability_zones : zone => index if local.creates }

  vpc_id          = local.creates ? aws_vpc.this[0].id : var.existing.vpc_id
  subnet_ids      = local.creates ? [for zone in var.availability_zones : aws_subnet.private[zone].id] : var.existing.subnet_ids
  route_table_ids = local.creates ? [aws_route_table.private[0].id] : var.existing.route_table_ids
}

data "aws_region" "current" {}

resource "aws_vpc" "this" {
  count = local.creates ? 1 : 0

  cidr_block = var.vpc_cidr
  # interface endpoints take the place of AWS's public names
  enable_dns_support   = true
  enable_dns_hostnames = true

  tags = { Name = var.name }
}

# The group that things get which name none: it lets nothing through.
resource "aws_default_security_group" "this" {
  count = local.creates ? 1 : 0

  vpc_id = aws_vpc.this[0].id

  tags = { Name = "${var.name}-unused" }
}

resource "aws_subnet" "private" {
  for_each = local.zones

  vpc_id                  = aws_vpc.this[0].id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.vpc_cidr, 4, each.value)
  map_public_ip_on_launch = false

  tags = { Name = "${var.name}-${each.key}" }
}

# One table for all zones: it holds the route to S3's endpoint, and no route out.
resource "aws_route_table" "private" {
  count = local.creates ? 1 : 0

  vpc_id = aws_vpc.this[0].id

  tags = { Name = "${var.name}-private" }
}

resource "aws_route_table_association" "private" {
  for_each = local.zones

  subnet_id      = aws_subnet.private[each.key].id
  route_table_id = aws_route_table.private[0].id
}

resource "aws_vpc_endpoint" "interface" {
  for_each = local.creates ? var.endpoint_services : toset([])

  vpc_id              = aws_vpc.this[0].id
  service_name        = "com.amazonaws.${data.aws_region.current.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  subnet_ids          = local.subnet_ids
  security_group_ids  = [aws_security_group.endpoints[0].id]
  private_dns_enabled = true

  tags = { Name = "${var.name}-${each.key}" }
}
