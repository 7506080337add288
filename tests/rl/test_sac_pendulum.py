"""SAC swings the pendulum up, with the shipped recipe."""

from __future__ import annotations

import torch

from plaudit import pipelines as stages
from plaudit.envs import build_env
from plaudit.rl import Trainer, build_algo, build_policy
from plaudit.rl.evaluation import evaluate


def test_the_recipe_swings_it_up_in_few_steps() -> None:
    config = stages.load("sac_pendulum", ["runtime.eval_freq=0"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    env, other = (build_env(config.env.id, {"num_envs": count}) for count in (1, 16))
    policy = build_policy(config.policy, env.observation_space, env.action_space)
    algorithm = build_algo(config.algorithm.name, config.algorithm.cfg, policy)
    trainer = Trainer(policy, env, algorithm, settings=config.runtime)
    before = evaluate(policy, other, 16, seed=1).metrics["return"]
    trainer.train(iterations=90)  # 4,500 steps; at its best it is about -150, and where nothing is learned -1,200.
    assert before < -900
    assert evaluate(policy, other, 16, seed=1).metrics["return"] > -300
    env.close()
    other.close()
