"""Whether this machine can calculate with bfloat16."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys

logger = logging.getLogger("plaudit")

_TRIAL = """
import torch
for count, channels, outputs in ((2, 8, 4), (16, 8, 256), (64, 64, 256)):
    image = torch.ones(count, channels, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        mapped = torch.conv2d(image, torch.ones(channels, channels, 3, 3), padding=1)
        sums = mapped.flatten(2).transpose(0, 1) @ torch.ones(channels, 64, 8)
        result = torch.nn.functional.linear(mapped.flatten(1), torch.ones(outputs, channels * 64))
    (sums.sum() + result.sum()).backward()
    assert result.isfinite().all() and image.grad.isfinite().all()
"""
"""Forward and back through what models are made of, small and large: which instructions are taken goes by the size."""


@functools.cache
def bf16_works(device_type: str) -> bool:
    """Whether bfloat16 can be used, found out by trying; where it cannot, a warning says why.

    Some virtual machines advertise instructions (AMX) that their host does not permit. Using them ends the process at
    once (SIGILL), so that the trial is made in another process.
    """
    if device_type == "cuda":
        import torch

        return bool(torch.cuda.is_bf16_supported())
    done = subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return True
    why = f"signal {-done.returncode}" if done.returncode < 0 else done.stderr.strip().rpartition("\n")[2]
    logger.warning(
        "this machine cannot calculate with bf16 (a trial ended with %s), so f32 is used. Where the CPU advertises AMX "
        "and its host does not permit it, ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment helps.",
        why,
    )
    return False
