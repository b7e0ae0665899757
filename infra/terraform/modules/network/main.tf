# A VPC without internet access, or an existing VPC; and the security group of all Siltstone tasks.
#
# The VPC has no internet gateway and no NAT gateway. Clients are not authenticated yet, so nothing here may be
# reachable from outside. Tasks reach the APIs of AWS through endpoints (the one for S3 is in modules/storage).

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
  # needed for the endpoints' private DNS: AWS's public names then resolve to addresses in this VPC
  enable_dns_support   = true
  enable_dns_hostnames = true

  tags = merge(var.tags, { Name = var.name })
}

# Takes all rules out of the VPC's default security group, which applies to whatever names no group.
resource "aws_default_security_group" "this" {
  count = local.creates ? 1 : 0

  vpc_id = aws_vpc.this[0].id

  tags = merge(var.tags, { Name = "${var.name}-unused" })
}

resource "aws_subnet" "private" {
  for_each = local.zones

  vpc_id                  = aws_vpc.this[0].id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.vpc_cidr, 4, each.value)
  map_public_ip_on_launch = false

  tags = merge(var.tags, { Name = "${var.name}-${each.key}" })
}

# One table for all zones. Its only route beside the local one goes to S3's endpoint.
resource "aws_route_table" "private" {
  count = local.creates ? 1 : 0

  vpc_id = aws_vpc.this[0].id

  tags = merge(var.tags, { Name = "${var.name}-private" })
}

resource "aws_route_table_association" "private" {
  for_each = local.zones

  subnet_id      = aws_subnet.private[each.key].id
  route_table_id = aws_route_table.private[0].id
}

resource "aws_vpc_endpoint" "interface" {
  for_each = local.creates ? var.endpoint_services : toset([])

  vpc_id              = aws_vpc.this[0].id
  service_name        = "com.amazonaws.${data.aws_region.current.id}.${each.key}"
  vpc_endpoint_type   = "Interface"
  subnet_ids          = local.subnet_ids
  security_group_ids  = [aws_security_group.endpoints[0].id]
  private_dns_enabled = true

  tags = merge(var.tags, { Name = "${var.name}-${each.key}" })
}
