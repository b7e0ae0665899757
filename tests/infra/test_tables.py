"""The tables in infra/terraform/README.md and the names of settings beside it, which are generated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.check import tables
from infra.check.checks import TREE

VARIABLES_OF_THE_TREE = (TREE / "variables.tf").read_text(encoding="utf-8")
VARIABLES = r"""variable "size" {
  description = "How many: \"one\" | two, or $${N}."
  type = object({
    n = optional(number, 3)
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.size.n > 0
    error_message = "size.n must be 1 or more."
  }
}

variable "name" {
  description = <<-EOT
    Its name.
      For all.
  EOT
  type        = string
}
"""
OUTPUTS = """output "address" {
  description = "Where it is."
  value       = "nowhere"
}
"""
# what terraform-docs 0.20 writes (markdown table --anchor=false --escape=false) for these
TABLES = r"""## Inputs

| Name | Description | Type | Default | Required |
|------|-------------|------|---------|:--------:|
| name | Its name.<br/>  For all. | `string` | n/a | yes |
| size | How many: "one" \| two, or ${N}. | <pre>object({<br/>    n = optional(number, 3)<br/>  })</pre> | `{}` | no |

## Outputs

| Name | Description |
|------|-------------|
| address | Where it is. |"""


def test_the_page_has_the_tables_of_the_tree() -> None:
    page = (TREE / tables.README).read_text(encoding="utf-8")
    assert tables.written(page, tables.tables(TREE)) == page, "run python -m infra.check.tables"


def test_the_tree_knows_the_settings_of_siltstone_and_no_others() -> None:
    assert (TREE / tables.SETTINGS).read_text(encoding="utf-8") == tables.setting_names(), "run infra.check.tables"
    names = tables.setting_names().split()
    assert names == sorted({*names}) and {"produce.linger.ms", "zone.listen"} <= {*names}
    # those that the configuration sets itself are refused by their names, which must be real ones
    [refused] = re.findall(r"setintersection\(keys\(var\.settings\), \[(.*?)\]\)", VARIABLES_OF_THE_TREE, re.S)
    assert {*re.findall(r'"([a-z.]+)"', refused)} < {*names}


def test_tables_are_written_between_their_markers_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "variables.tf").write_text(VARIABLES)
    (tmp_path / "outputs.tf").write_text(OUTPUTS)
    page = tmp_path / tables.README
    page.write_text(f"# Thing\n\n{tables.BEGIN}\nold\n{tables.END}\nthe end\n")
    for _ in range(2):
        assert tables.main(["--tree", str(tmp_path)]) == 0
        assert page.read_text() == f"# Thing\n\n{tables.BEGIN}\n{TABLES}\n{tables.END}\nthe end\n"


def test_a_page_without_markers_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / tables.README).write_text("# Thing\n")
    assert tables.main(["--tree", str(tmp_path)]) == 1
    assert tables.BEGIN in capsys.readouterr().err
    assert (tmp_path / tables.README).read_text() == "# Thing\n"
