"""How kernels are compiled and cached: shared by processes, never out of date, and never compiled in an agent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import pytest

from wire.kernels import code_cache
from wire.kernels.code_cache import cache_directory
from wire.kernels.compiled import compiled

ROOT = Path(__file__).resolve().parents[4]
SHARED = """
import os, sys
from wire.kernels.compiled import compiled

def tripled(number: int) -> int:
    return 3 * number

children = []
for number in range(4):
    child = os.fork()
    if not child:
        os._exit(0 if compiled(tripled)(number) == 3 * number else 1)
    children.append(child)
codes = [os.waitpid(child, 0)[1] for child in children]
kernel = compiled(tripled)
print(codes, kernel(7), sum(kernel.stats.cache_hits.values()), len(os.listdir(os.environ["NUMBA_CACHE_DIR"])))
"""


def doubled(number: int) -> int:
    return 2 * number


def run(call: Any, number: int) -> tuple[int, bool]:
    """(result of a freshly made kernel, whether it was compiled instead of loaded)."""
    kernel: Any = compiled(call)
    answer = kernel(number)
    return answer, bool(kernel.stats.cache_misses)


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_one_compiled_another_loads(directory: Path) -> None:
    assert run(doubled, 21) == (42, True)
    assert run(doubled, 4) == (8, False)
    (file,) = files(directory)
    assert file.stat().st_mode & 0o444 == 0o444  # the user who runs the image need not be the user who built it


def test_a_torn_file_is_compiled_anew_and_replaced(directory: Path) -> None:
    run(doubled, 1)
    (file,) = files(directory)
    whole = file.read_bytes()
    for torn in (b"", whole[:20], whole[:-1], whole[:100] + bytes((whole[100] ^ 1,)) + whole[101:]):
        file.write_bytes(torn)
        assert run(doubled, 3) == (6, True)
        assert run(doubled, 3) == (6, False)


def test_a_file_that_is_no_kernel_is_not_unpickled(directory: Path) -> None:
    run(doubled, 1)
    (file,) = files(directory)
    file.write_bytes(bytes(32) + b"cos\nabort\n(tR.")  # would end the process
    assert run(doubled, 5) == (10, True)


def test_a_file_that_others_may_write_is_not_unpickled(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(doubled, 1)
    (file,) = files(directory)
    for mode in (0o664, 0o646):
        file.chmod(mode)
        assert run(doubled, 5) == (10, True)
        assert run(doubled, 5) == (10, False), "it was replaced by one of our own"
    # nor one of a stranger, which is neither ours nor root's nor that of the sources' owner
    (file,) = files(directory)
    ours = os.stat_result((0o100644, 0, 0, 1, (stranger := 2**31 - 2), 0, 0, 0, 0, 0))
    assert not code_cache._is_trusted(ours)
    monkeypatch.setattr("wire.kernels.code_cache.os.getuid", lambda: stranger)
    assert code_cache._is_trusted(ours)


def test_where_nothing_can_be_written_each_process_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert cache_directory() is None
    assert run(doubled, 7) == (14, True)
    assert run(doubled, 7) == (14, True)


def test_a_closure_is_never_loaded_for_another(directory: Path) -> None:
    def times(factor: int) -> Any:
        def kernel(number: int) -> int:
            return factor * number

        return kernel

    assert run(times(3), 5) == (15, True)
    assert run(times(4), 5) == (20, True)


def test_a_change_in_any_kernel_makes_all_of_them_anew(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a kernel compiled with the sources of all kernels in one state
    sources = tmp_path / "kernels"
    sources.mkdir()
    (sources / "called.py").write_text("LIMIT = 1\n")
    monkeypatch.setattr(code_cache, "_KERNELS", sources)
    code_cache._sources_digest.cache_clear()
    assert run(doubled, 1) == (2, True)
    assert run(doubled, 1) == (2, False)
    # when one of them changes
    (sources / "called.py").write_text("LIMIT = 2\n")
    code_cache._sources_digest.cache_clear()
    # then a kernel of another module is compiled again, because it may have inlined the changed one
    assert run(doubled, 1) == (2, True)
    code_cache._sources_digest.cache_clear()


FACTOR = 2
TABLE = np.arange(4)


@compiled
def scaled(number: int) -> int:
    return FACTOR * number


def scaled_and_shifted(number: int) -> int:
    return scaled(number) + TABLE[0]


@pytest.mark.parametrize(("name", "value"), [("FACTOR", 3), ("TABLE", np.arange(5, 9))])
def test_a_constant_that_changes_makes_the_kernel_anew(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    assert run(scaled_and_shifted, 10) == (20, True)
    assert run(scaled_and_shifted, 10) == (20, False)
    # when a global that the kernel, or a kernel that it calls, reads has another value
    monkeypatch.setitem(scaled_and_shifted.__globals__, name, value)
    monkeypatch.setitem(scaled_and_shifted.__globals__, "scaled", compiled(cast(Any, scaled).py_func))
    # then the cached code is not loaded
    assert run(scaled_and_shifted, 10) == (30 if name == "FACTOR" else 25, True)


def test_old_versions_of_a_kernel_do_not_pile_up(directory: Path) -> None:
    run(doubled, 1)
    (file,) = files(directory)
    for number in range(20):
        (directory / f"{file.name.rsplit('-', 1)[0]}-{number:024x}.nbc").touch()
    other = directory / "kernel-of.another-0123.nbc"
    other.touch()
    file.unlink()
    run(doubled, 1)
    assert file in files(directory) and other in files(directory)
    assert len(files(directory)) == code_cache._VERSIONS_KEPT + 1


def test_processes_that_compile_at_once_share_a_directory(tmp_path: Path) -> None:
    # given four processes that compile one kernel at the same time, into a directory that does not exist yet
    script = tmp_path / "shared.py"
    script.write_text(SHARED)
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", str(script)]
    # when all are done
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    # then each result was right, and a fifth process loads the one file that they left
    assert outcome.stdout.strip() == "[0, 0, 0, 0] 21 1 1", outcome.stderr


def test_agents_and_the_rooms_below_load_neither_kernels_nor_numba() -> None:
    code = (
        "import sys, agents.agent, storage.urls, metadata.urls, siltstone.cli\n"
        "print([name for name in sys.modules if name in ('numba', 'llvmlite', 'numpy') or 'kernels' in name])"
    )
    outcome = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert outcome.stdout.strip() == "[]"
