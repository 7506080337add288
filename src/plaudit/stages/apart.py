"""From a config to acting in this process while another one learns: `runtime.mode: async`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from plaudit.compute import apart_threads, claim_threads
from plaudit.config.schema import Config
from plaudit.rl.algorithms.sac import digests

if TYPE_CHECKING:
    from plaudit.envs.base import VecEnv
    from plaudit.rl.asynchronous.actor import Actor


def beside_learning(config: Config, learns_on: torch.device, *, looks: bool) -> tuple[Config, torch.device, int]:
    """The config for a process that only acts, where it does, and the other one's threads: it leaves that one a core,
    or half of them where a policy that `looks` at pictures learns without a GPU, and the GPU.
    """
    claim_threads(1)
    judged, frozen = config.reward.use_reward_model, bool(config.policy.cfg.get("freeze_encoder"))
    # Then pictures are turned into numbers while acting.
    kept = frozen and digests(config.algorithm.cfg.get("image_shift", 0), judged=judged)
    acting, learning = apart_threads(config.runtime.threads, looks=looks and learns_on.type == "cpu" and not kept)
    return replace(config, runtime=replace(config.runtime, threads=acting)), torch.device("cpu"), learning


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
