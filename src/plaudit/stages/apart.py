"""From a config to acting in this process while another one learns: `runtime.mode: async`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from plaudit.compute import acting_threads, claim_threads
from plaudit.config.schema import Config

if TYPE_CHECKING:
    from plaudit.envs.base import VecEnv
    from plaudit.rl.asynchronous.actor import Actor


def beside_learning(config: Config, *, looks: bool) -> tuple[Config, torch.device]:
    """The config for a process that only acts, and where it does: it leaves a core, or where the policy `looks` at
    pictures half of them, and the GPU to the other one.
    """
    claim_threads(1)
    threads = acting_threads(config.runtime.threads, looks=looks)
    return replace(config, runtime=replace(config.runtime, threads=threads)), torch.device("cpu")


def learn_elsewhere(
    config: Config, sac: Any, env: VecEnv, device: torch.device, threads: int, stack: ExitStack
) -> Actor:
    """An algorithm that only acts; what `sac` is to learn a process learns on `device`, with so many threads, which
    ends with `stack`.
    """
    from plaudit.rl.asynchronous.actor import Actor

    runtime = config.runtime
    actor = Actor(sac, env, config.policy, device=device, threads=threads, seed=runtime.seed, imports=runtime.imports)
    stack.callback(actor.close)
    return actor
