"""What is said of Vulkan drivers."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from plaudit.envs.maniskill import vulkan as maniskill_vulkan
from plaudit.envs.maniskill.vulkan import Device, problem_with, require_vulkan
from plaudit.errors import MissingDependencyError

OLD = Device("llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe Mesa 22.3.6 (LLVM 15.0.6)", software=True)
NEW = Device("llvmpipe (LLVM 19.1.7, 256 bits)", "llvmpipe Mesa 25.0.7-2 (LLVM 19.1.7)", software=True)
GPU = Device("NVIDIA GeForce RTX 4090", "NVIDIA 550.54.14", software=False)


@pytest.mark.parametrize("devices", [[NEW], [GPU], [OLD, GPU]])
def test_one_good_device_is_enough(devices: list[Device]) -> None:
    assert problem_with(devices) is None


def test_nothing_and_too_old_are_told_apart() -> None:
    none, old = problem_with([]), problem_with([OLD])
    assert none is not None and "there is no Vulkan driver" in none and "make maniskill" in none
    assert old is not None and "Mesa 24 or newer" in old and "the driver here is llvmpipe Mesa 22.3.6" in old


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (subprocess.CompletedProcess([], 1, "", "warning\nManiSkill needs Vulkan, but it rained.\n"), "but it rained."),
        (subprocess.CompletedProcess([], 1, "", "Traceback\nAttributeError: vkGet\n"), "(AttributeError: vkGet). In a"),
        (subprocess.CompletedProcess([], 3, "", ""), "cannot be asked here (exit code 3). In a checkout"),
        (subprocess.CompletedProcess([], -11, "", ""), "crashes (signal 11)"),
        (subprocess.TimeoutExpired([], 1.0), "hangs"),
    ],
)
def test_the_child_process_tells_or_its_end_does(monkeypatch: pytest.MonkeyPatch, outcome: Any, words: str) -> None:
    monkeypatch.setattr(maniskill_vulkan.sys, "platform", "linux")

    def run(*_: object, **__: object) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(maniskill_vulkan.subprocess, "run", run)
    with pytest.raises(MissingDependencyError) as caught:
        require_vulkan.__wrapped__()
    assert words in str(caught.value)


def test_other_systems_are_not_asked_for_linux_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maniskill_vulkan.sys, "platform", "darwin")
    monkeypatch.setattr(maniskill_vulkan.subprocess, "run", lambda *_, **__: pytest.fail("asked"))
    require_vulkan.__wrapped__()


def test_the_program_reports_on_this_machine() -> None:
    done = subprocess.run(
        [maniskill_vulkan.sys.executable, "-m", maniskill_vulkan.__name__], capture_output=True, text=True, check=False
    )
    assert (done.returncode, bool(done.stdout)) in ((0, True), (1, False))
    assert done.returncode == 0 or "ManiSkill needs Vulkan" in done.stderr
