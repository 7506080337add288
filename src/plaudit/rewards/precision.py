"""Whether this machine can calculate with bfloat16."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys

logger = logging.getLogger("plaudit")

_TRIAL = """
import torch
image, weight = torch.ones(2, 8, 8, 8), torch.ones(8, 8, 3, 3)
with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
    mapped = torch.conv2d(image, weight, padding=1).flatten(1)
    result = torch.nn.functional.linear(mapped, torch.ones(4, 512))
assert result.isfinite().all()
"""


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
