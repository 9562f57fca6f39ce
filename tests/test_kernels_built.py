"""How the kernels come to be on a machine, and what happens where they cannot."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from convolutions import compiled
from semifed import library
from semifed.nets import kernels
from semifed.nets.kernels import operations

TENSORS = torch.randn(3, 1, 28, 28), torch.randn(10, 1, 5, 5), torch.randn(10)
PLAIN = F.relu(F.max_pool2d(F.conv2d(*TENSORS), 2))


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache, and nothing loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(library, "failures", [])
    monkeypatch.setattr(library, "FLAGS", tuple(flag for flag in library.FLAGS if flag != "-O3"))  # builds in no time
    for cached in (library.load, operations.convolution, operations.product):
        cached.cache_clear()
    yield tmp_path
    for cached in (library.load, operations.convolution, operations.product):
        cached.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_without_a_compiler_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert torch.equal(kernels.conv_pool_relu(*TENSORS), PLAIN)
    assert kernels.status() == "torch (no C++ compiler: looked for c++, g++, clang++)"
    monkeypatch.setenv(library.SWITCH, "off")
    assert kernels.status() == "torch (SEMIFED_KERNELS=off)"


@compiled
def test_a_compiler_that_fails_is_named(forgotten: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    assert torch.equal(kernels.conv_pool_relu(*TENSORS), PLAIN)
    assert kernels.status().startswith("torch (false failed: ")
    assert not list(forgotten.rglob("kernel.so"))


@compiled
def test_a_compiler_that_does_not_know_its_processor_builds_the_plain_form(
    forgotten: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picky = forgotten / "picky"
    picky.write_text(
        '#!/bin/sh\ncase "$*" in *-march*) echo "error: unknown processor" >&2; exit 1;; esac\nexec c++ "$@"\n'
    )
    picky.chmod(0o755)
    monkeypatch.setenv("CXX", str(picky))
    assert kernels.status() == "compiled"
    x, weight, bias = torch.randn(3, 20), torch.randn(4, 20), torch.randn(4)
    torch.testing.assert_close(kernels.linear(x, weight, bias), F.linear(x, weight, bias))


@compiled
@pytest.mark.usefixtures("forgotten")
def test_where_the_cache_cannot_be_written_the_library_lives_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert kernels.status() == "compiled for this processor"


@compiled
def test_two_builds_at_once_do_not_disturb_each_other(forgotten: Path) -> None:
    with ThreadPoolExecutor(2) as pool:  # the compiler is a process of its own in any case
        found = list(pool.map(lambda _: library._load(("nets/kernels/linear.cpp",), ()), range(2)))
    assert [one.note for one in found] == ["compiled for this processor"] * 2
    assert [path.name for path in forgotten.rglob("*") if path.is_file()] == ["kernel.so"]


@compiled
def test_what_does_not_load_is_built_again(forgotten: Path) -> None:
    first = library._load(("nets/kernels/linear.cpp",), ())
    assert first.code is not None
    path = next(forgotten.rglob("kernel.so"))
    path.unlink()
    path.write_text("not a library")
    assert library._load(("nets/kernels/linear.cpp",), ()).code is not None


def test_the_sources_are_in_the_package() -> None:
    """They must be in the wheel."""
    sources = {str(path.relative_to(library.HERE)) for path in library.HERE.rglob("*") if path.suffix in (".cpp", ".h")}
    assert sources >= {"nets/kernels/linear.cpp", "nets/kernels/conv_pool_relu_forward.cpp"}
    assert sources >= {"data/kernels/views.cpp", "data/kernels/randaugment.h"}
