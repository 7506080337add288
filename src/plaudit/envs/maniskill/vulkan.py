"""Check for a Vulkan driver that ManiSkill can use: `python -m plaudit.envs.maniskill.vulkan`.

SAPIEN, ManiSkill's simulator, needs a driver even if nothing is rendered. If there is none, or it is too old, SAPIEN's
error messages do not help. The check therefore runs first, in a child process: a broken driver crashes its process.
"""

from __future__ import annotations

import ctypes
import functools
import json
import re
import subprocess
import sys
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int32, c_uint8, c_uint32, c_void_p
from dataclasses import asdict, dataclass

from plaudit.errors import MissingDependencyError

OLDEST_MESA = 24
"""Oldest usable major version of Mesa's software driver.

Version 22.3 of Debian 12 lacks features that SAPIEN needs; 25.0 has them.
"""

_MEND = (
    "In a checkout 'make maniskill' installs one that needs no GPU; elsewhere install your GPU's driver, or the "
    f"package mesa-vulkan-drivers of version {OLDEST_MESA} or newer (Debian 12: from bookworm-backports)."
)
_NEEDS = "ManiSkill needs Vulkan"
_CPU = 4  # VK_PHYSICAL_DEVICE_TYPE_CPU
_PATIENCE = 300.0


@dataclass(frozen=True)
class Device:
    """One Vulkan device.

    Attributes:
        name: Device name, such as `llvmpipe (LLVM 19.1.7, 256 bits)`.
        driver: Driver name and version, such as `llvmpipe Mesa 25.0.7-2`.
        software: Whether the CPU renders.
    """

    name: str
    driver: str
    software: bool

    @property
    def usable(self) -> bool:
        """Whether SAPIEN can use the device: false for a Mesa software driver that is too old."""
        mesa = re.search(r"\bMesa (\d+)", self.driver)
        return not (self.software and mesa and int(mesa[1]) < OLDEST_MESA)


@functools.cache
def require_vulkan() -> None:
    """Raise a `MissingDependencyError` if there is no usable Vulkan driver.

    The message says what is missing or too old, and how to fix it. Checked once in a process, since drivers do not
    change while it runs, and only on Linux: elsewhere drivers have other names and are installed differently, and
    SAPIEN's own messages have to do.
    """
    if sys.platform != "linux":
        return

    # A child process, because a broken driver may crash it.
    command = [sys.executable, "-m", "plaudit.envs.maniskill.vulkan"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise MissingDependencyError(f"{_NEEDS}, but the driver here hangs. {_MEND}") from None

    if result.returncode < 0:
        problem = f"the driver here crashes (signal {-result.returncode})"
        raise MissingDependencyError(f"{_NEEDS}, but {problem}. {_MEND}")

    # Prefer the message of `problem_with` to the last line of a traceback.
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        messages = [line for line in lines if line.startswith(_NEEDS)]
        last = lines[-1] if lines else f"exit code {result.returncode}"
        raise MissingDependencyError(
            messages[-1] if messages else f"{_NEEDS}, but it cannot be asked here ({last}). {_MEND}"
        )


def problem_with(devices: list[Device]) -> str | None:
    """Return what is wrong with the devices, or `None` if one of them is usable."""
    if any(device.usable for device in devices):
        return None
    if not devices:
        return f"{_NEEDS}, but there is no Vulkan driver here. {_MEND}"
    drivers = ", ".join(device.driver for device in devices)
    return f"{_NEEDS} from Mesa {OLDEST_MESA} or newer, or a GPU's, but the driver here is {drivers}. {_MEND}"


class _ApplicationInfo(Structure):
    _fields_ = (
        ("type", c_int32),
        ("next", c_void_p),
        ("name", c_char_p),
        ("version", c_uint32),
        ("engine", c_char_p),
        ("engine_version", c_uint32),
        ("api", c_uint32),
    )


class _InstanceInfo(Structure):
    _fields_ = (
        ("type", c_int32),
        ("next", c_void_p),
        ("flags", c_uint32),
        ("application", POINTER(_ApplicationInfo)),
        ("layer_count", c_uint32),
        ("layers", c_void_p),
        ("extension_count", c_uint32),
        ("extensions", c_void_p),
    )


class _DriverProperties(Structure):
    _fields_ = (
        ("type", c_int32),
        ("next", c_void_p),
        ("id", c_int32),
        ("name", c_char * 256),
        ("info", c_char * 256),
        ("conformance", c_uint8 * 4),
    )


class _DeviceProperties(Structure):
    """`VkPhysicalDeviceProperties2`, of which only the first fields are used."""

    _fields_ = (
        ("type", c_int32),
        ("next", POINTER(_DriverProperties)),
        ("api", c_uint32),
        ("driver_version", c_uint32),
        ("vendor", c_uint32),
        ("device", c_uint32),
        ("kind", c_int32),
        ("name", c_char * 256),
        ("rest", c_uint8 * 2048),
    )


def find_devices() -> list[Device]:
    """Return the Vulkan devices of this machine.

    A broken driver may crash the process, so `require_vulkan` calls this in a child process.
    """
    try:
        vulkan = ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return []

    application = _ApplicationInfo(api=(1 << 22) | (2 << 12))  # Vulkan 1.2, which reports the driver's name.
    instance = c_void_p()
    if vulkan.vkCreateInstance(
        byref(_InstanceInfo(type=1, application=ctypes.pointer(application))), None, byref(instance)
    ):
        return []

    # Vulkan's convention: the first call returns the count, the second fills the array.
    try:
        count = c_uint32()
        vulkan.vkEnumeratePhysicalDevices(instance, byref(count), None)
        handles = (c_void_p * count.value)()
        vulkan.vkEnumeratePhysicalDevices(instance, byref(count), handles)
        return [_describe(vulkan, c_void_p(handle)) for handle in handles]
    finally:
        vulkan.vkDestroyInstance(instance, None)


def _describe(vulkan: ctypes.CDLL, handle: c_void_p) -> Device:
    """Return the name, driver and type of one physical device."""
    driver = _DriverProperties(type=1000196000)
    properties = _DeviceProperties(type=1000059001, next=ctypes.pointer(driver))
    vulkan.vkGetPhysicalDeviceProperties2(handle, byref(properties))
    driver_text = f"{driver.name.decode(errors='replace')} {driver.info.decode(errors='replace')}".strip()
    return Device(
        properties.name.decode(errors="replace"), driver_text or "of unknown version", properties.kind == _CPU
    )


def main() -> int:
    """Print the devices as JSON; if none is usable, print the reason and return 1."""
    devices = find_devices()
    problem = problem_with(devices)
    if problem is not None:
        print(problem, file=sys.stderr)
        return 1
    print(json.dumps([asdict(device) for device in devices]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
