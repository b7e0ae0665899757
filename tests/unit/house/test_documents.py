"""The promises of the documents: the files that they name exist, and the glossary is in alphabetical order."""

from __future__ import annotations

import fnmatch
import re
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from runtime.settings.removed import REMOVED_SETTINGS
from siltstone.ops.compaction.causes import Cause

ROOT = Path(__file__).resolve().parents[3]
GLOSSARY = ROOT / "docs" / "glossary.md"
GLOSSARY_LINE_CHARS_MAX = 200
NAMED_FILE = re.compile(r"`([\w{},*./-]+/[\w{},*.-]+\.(?:py|sql|toml))`")
BARE_FILE = re.compile(r"`([\w*]+\.(?:py|sql|toml))`")
FENCE = re.compile(r"\s*```(.*?)\s*$")
LINK_TO_HEADING = re.compile(r"\[[^\]]*\]\(([^)\s#:]*)#([^)\s]+)\)")
NOT_OURS_ALONE = {"fetch.max.wait.ms"}
"""Names of removed settings that clients have as well."""
TERM = re.compile(r"- \*\*([^*]+)\*\*: (\S.*\.)")


def listed(*patterns: str) -> list[Path]:
    """The files of the repository, including those about to be added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return sorted(ROOT / name for name in set(names) if name and (ROOT / name).is_file())


def documents() -> list[Path]:
    return listed("*.md")


def spelled_out(pattern: str) -> Iterator[str]:
    """`a/{b,c}.py` as `a/b.py` and `a/c.py`."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    yield from ("".join(chosen) for chosen in product(*choices))


def is_there(name: str, page: Path) -> bool:
    """Whether `name`, from the root of the repository or from the folder of `page`, is a file; `*` matches any text."""
    return any(True for folder in (ROOT, page.parent) for _ in folder.glob(name))


def named_files(text: str) -> Iterator[str]:
    for pattern in NAMED_FILE.findall(text):
        yield from spelled_out(pattern)


def fence_faults(text: str) -> Iterator[str]:
    """The lines whose code fences do not pair. An opening fence names a language, a closing one does not."""
    opened = 0
    for number, line in enumerate(text.splitlines(), start=1):
        fence = FENCE.match(line)
        if fence is None:
            continue
        if fence[1] and opened:
            yield f"line {number}: a block opens inside the block of line {opened}"
        elif not fence[1] and not opened:
            yield f"line {number}: a block opens without a language (`text` if it has none), or closes nothing"
        opened = number if fence[1] else 0
    if opened:
        yield f"line {opened}: the block is never closed"


def anchors(page: Path) -> set[str]:
    """The addresses of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_lead_to_one() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}#{anchor}"
        for page in documents()
        for target, anchor in LINK_TO_HEADING.findall(page.read_text(encoding="utf-8"))
        if anchor not in anchors(page.parent / target if target else page)
    ]
    assert broken == []


def test_every_code_block_opens_with_a_language_and_is_closed() -> None:
    faults = [
        f"{page.relative_to(ROOT)}, {fault}"
        for page in documents()
        for fault in fence_faults(page.read_text(encoding="utf-8"))
    ]
    assert faults == []


def test_a_fence_that_is_missing_is_noticed() -> None:
    assert list(fence_faults("a\n```sh\nb\n```\n   ```text\n   c\n   ```\n")) == []
    opens_inside, not_closed = fence_faults("```sh\na\n\n```sh\nb\n")
    assert (opens_inside, not_closed) == (
        "line 4: a block opens inside the block of line 1",
        "line 4: the block is never closed",
    )
    (bare,) = fence_faults("a\n```\nb\n")
    assert bare.startswith("line 2: a block opens without a language")


def test_no_guide_names_a_setting_that_was_removed() -> None:
    guides = [page for page in documents() if page.parent.name != "decisions" and page.name != "settings.md"]
    named = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in guides
        if page.name != "configs.md"  # Kafka's names, some of which were settings
        for name in re.findall(r"`([a-z0-9.]+)[`=]", page.read_text(encoding="utf-8"))
        if name in REMOVED_SETTINGS.keys() - NOT_OURS_ALONE
    }
    assert named == set()


def test_the_file_map_has_every_room_within_a_room() -> None:
    rows = dict(re.findall(r"^\| `(\w+)/` (.*)$", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.MULTILINE))
    packages = {
        path.parent.relative_to(ROOT) for path in listed("*/*/__init__.py") if len(path.relative_to(ROOT).parts) == 3
    }
    assert len(packages) > 30
    assert [str(package) for package in packages if f"`{package.name}/`" not in rows[package.parts[0]]] == []


def test_the_bugs_that_the_design_names_are_planted() -> None:
    chapter = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split("\n## 15.")[1].split("\n## ")[0]
    named = re.findall(r"`([a-z]+(?:-[a-z0-9]+)+)`", chapter)
    files = [ROOT / "tests" / folder / "planted.py" for folder in ("simulation", "compaction")]
    planted = "".join(path.read_text(encoding="utf-8") for path in files)
    assert len(named) > 10
    assert [name for name in named if f"def {name.replace('-', '_')}(" not in planted] == []


def test_the_guide_to_compaction_explains_every_code_of_explain() -> None:
    text = (ROOT / "docs" / "compacted-topics.md").read_text(encoding="utf-8").split("| code | background |")[1]
    explained = {
        code for cell in re.findall(r"^\| (.*?) \|", text, re.MULTILINE) for code in re.findall("`(.+?)`", cell)
    }
    assert explained == {each.code for each in Cause}


def test_every_decision_is_in_their_list() -> None:
    records = {path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    assert {name for name in records if f"]({name})" not in index} == set()


def test_every_file_that_a_page_names_exists() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in documents()
        for name in named_files(page.read_text(encoding="utf-8"))
        if not is_there(name, page)
    ]
    assert missing == []


def test_every_file_that_a_page_names_without_its_folder_exists_somewhere() -> None:
    names = {path.name for path in listed("*.py", "*.sql", "*.toml")}
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in documents()
        for name in BARE_FILE.findall(page.read_text(encoding="utf-8"))
        if not fnmatch.filter(names, name)
    ]
    assert missing == []


def test_a_file_that_is_not_there_is_noticed() -> None:
    text = "`storage/keys.py`, `storage/{keys,no_such}.py`, `keys.py`, `make test`, `docs/*.toml`, storage/none.py"
    found = list(named_files(text))
    assert found == ["storage/keys.py", "storage/keys.py", "storage/no_such.py", "docs/*.toml"]
    assert [is_there(name, ROOT / "README.md") for name in found] == [True, True, False, False]


def test_the_glossary_has_each_term_once_in_order_and_on_one_line() -> None:
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line.startswith("-")]
    found = [match for line in entries if (match := TERM.fullmatch(line))]
    assert [line for line in entries if TERM.fullmatch(line) is None] == []
    assert [line for line in entries if len(line) > GLOSSARY_LINE_CHARS_MAX] == []
    terms = [match[1].lower() for match in found]
    assert len(terms) > 50
    assert terms == sorted(set(terms))
    # nothing follows the list, so no definition goes on below its line
    assert lines[-len(entries) :] == entries
