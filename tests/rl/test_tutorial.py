"""EmbodiChain's RL tutorial: its custom algorithm, policy and env as printed, with bodies filled in."""

import json
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn

from plaudit.config.schema import RuntimeConfig
from plaudit.envs import Outcome, build_env, register_env
from plaudit.envs import TaskEnv as EmbodiedEnv
from plaudit.rl import (
    BaseAlgorithm,
    Callback,
    Policy,
    RolloutBuffer,
    Trainer,
    build_algo,
    build_policy,
    register_algo,
    register_policy,
)


@register_algo("my_algo")
class MyAlgorithm(BaseAlgorithm):
    def __init__(self, cfg, policy):
        self.cfg = cfg
        self.policy = policy
        self.device = torch.device(cfg.device)
        self.buffer = None
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.learning_rate)

    def initialize_buffer(self, num_steps, num_envs, obs_dim, action_dim):
        """Initialize the algorithm's buffer."""
        self.buffer = RolloutBuffer(num_steps, num_envs, obs_dim, action_dim, self.device)

    def collect_rollout(self, env, policy, obs, num_steps, on_step_callback=None):
        """Control data collection process (interact with env, fill buffer, compute advantages/returns)."""
        for _ in range(num_steps):
            with torch.no_grad():
                action, log_prob, value = policy.get_action(obs)
            next_obs, reward, terminated, truncated, info = env.step(action)
            done = terminated | truncated
            self.buffer.add(obs, action, reward, done, value, log_prob)
            if on_step_callback is not None:
                on_step_callback(obs, action, reward, done, info, next_obs)
            obs = next_obs
        ret = torch.zeros_like(self.buffer.rewards)
        with torch.no_grad():
            future = policy.get_value(obs)
        for t in reversed(range(num_steps)):
            future = self.buffer.rewards[t] + 0.9 * future * ~self.buffer.dones[t]
            ret[t] = future
        self.buffer.set_extras({"advantages": ret - self.buffer.values, "returns": ret})
        return {}

    def update(self):
        """Update the policy using collected data."""
        adv = self.buffer._extras.get("advantages")
        mean, std = adv.mean(), adv.std() + 1e-8
        for batch in self.buffer.iterate_minibatches(self.cfg.batch_size):
            log_prob, _entropy, value = self.policy.evaluate_actions(batch["obs"], batch["actions"])
            loss = -(log_prob * (batch["advantages"] - mean) / std).mean() + (value - batch["returns"]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return {"loss": loss.item()}


@register_policy("my_policy")
class MyPolicy(Policy):
    def __init__(self, obs_space, action_space, device, config):
        super().__init__()
        self.device = device
        self.mean = nn.Linear(obs_space.shape[0], action_space.shape[0])
        self.value = nn.Linear(obs_space.shape[0], 1)
        self.std = config["std"]

    def _normal(self, obs):
        return torch.distributions.Normal(self.mean(obs), self.std)

    def get_action(self, obs, deterministic=False):
        law = self._normal(obs)
        action = law.mean if deterministic else law.sample()
        return action, law.log_prob(action).sum(-1), self.get_value(obs)

    def get_value(self, obs):
        return self.value(obs).squeeze(-1)

    def evaluate_actions(self, obs, actions):
        law = self._normal(obs)
        return law.log_prob(actions).sum(-1), law.entropy().sum(-1), self.get_value(obs)


@dataclass
class MyTaskEnvCfg:
    num_envs: int = 4
    goal: float = 0.0


@register_env("MyTaskRL", max_episode_steps=100, override=True)
class MyTaskEnv(EmbodiedEnv):
    """A point on a line that should go to the goal; the action moves it."""

    cfg: MyTaskEnvCfg

    def __init__(self, cfg, device="cpu"):
        super().__init__(cfg, device)
        self.num_envs = cfg.num_envs
        self.observation_space = gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)})
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.x = torch.zeros(self.num_envs)

    def start(self, ids, seed=None):
        if seed is not None:
            torch.manual_seed(seed)
        self.x[ids] = torch.rand(len(ids)) * 4 - 2

    def advance(self, action):
        self.x = (self.x + 0.2 * action.squeeze(-1).clamp(-1, 1)).clamp(-3, 3)
        distance = (self.x - self.cfg.goal).abs()
        return Outcome(
            reward=-distance,
            terminated=torch.zeros(self.num_envs, dtype=torch.bool),
            success=distance < 0.2,
            rewards={"distance": -distance},
            metrics={"position": self.x.clone()},
        )

    def observe(self, ids=None):
        return {"state": (self.x if ids is None else self.x[ids])[:, None].clone()}


# The blocks are the tutorial's, the names in them ours.
CONFIG = """{
  "runtime": {"exp_name": "my_task", "seed": 0, "cuda": false, "iterations": 60, "rollout_steps": 25},
  "env": {"id": "MyTaskRL", "cfg": {"num_envs": 16, "goal": 0.5}},
  "policy": {"name": "my_policy", "cfg": {"std": 0.5}},
  "algorithm": {"name": "my_algo", "cfg": {"learning_rate": 0.02, "batch_size": 100}}
}"""

NETWORKS = """{
  "name": "actor_critic",
  "cfg": {},
  "actor": {"type": "mlp", "hidden_sizes": [256, 256], "activation": "relu"},
  "critic": {"type": "mlp", "hidden_sizes": [256, 256], "activation": "relu"}
}"""

PPO_BLOCK = """{
  "name": "ppo",
  "cfg": {
    "learning_rate": 0.0001,
    "n_epochs": 10,
    "batch_size": 64,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_coef": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5
  }
}"""


class Memory(Callback):
    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def on_metrics(self, step: int, metrics: Any) -> None:
        self.metrics.append(dict(metrics))


def make(config: dict[str, Any], memory: Memory) -> Trainer:
    """What the tutorial's training script does, step by step."""
    torch.manual_seed(config["runtime"]["seed"])
    device = torch.device("cpu")
    env = build_env(config["env"]["id"], config["env"]["cfg"], device)
    policy = build_policy(config["policy"], env.observation_space, env.action_space, device)
    algorithm = build_algo(config["algorithm"]["name"], config["algorithm"]["cfg"], policy, device)
    eval_env = build_env(config["env"]["id"], config["env"]["cfg"], device)
    settings = RuntimeConfig(**config["runtime"], eval_freq=0, eval_episodes=32)
    return Trainer(policy, env, algorithm, settings=settings, eval_env=eval_env, listeners=[memory])


def test_custom_algorithm_policy_and_env_train_together() -> None:
    memory = Memory()
    trainer = make(json.loads(CONFIG), memory)
    assert isinstance(trainer.algorithm, MyAlgorithm)
    assert isinstance(trainer.policy, MyPolicy)
    summary = trainer.train()
    first, last = memory.metrics[3], memory.metrics[-1]
    assert last["rewards/distance"] > 0.5 * first["rewards/distance"]
    assert abs(last["metrics/position"] - 0.5) < 0.2
    assert last["rollout/length"] == 100
    assert "train/loss" in last
    assert summary["eval"]["success_at_end"] > 0.9


def test_the_tutorials_policy_and_algorithm_blocks_train_the_custom_env() -> None:
    memory = Memory()
    config = json.loads(CONFIG) | {"policy": json.loads(NETWORKS), "algorithm": json.loads(PPO_BLOCK)}
    config["runtime"]["iterations"] = 25
    summary = make(config, memory).train()
    assert memory.metrics[-1]["rewards/distance"] > 0.6 * memory.metrics[3]["rewards/distance"]
    assert summary["eval"]["success_at_end"] > 0.5


def test_ppo_trains_the_custom_policy() -> None:
    memory = Memory()
    cfg = {"learning_rate": 0.02, "gamma": 0.9, "max_grad_norm": 10.0}
    config = json.loads(CONFIG) | {"algorithm": {"name": "ppo", "cfg": cfg}}
    assert make(config, memory).train()["eval"]["success_at_end"] > 0.9


def test_a_custom_algorithm_resumes_its_optimizer() -> None:
    trainer, other = make(json.loads(CONFIG), Memory()), make(json.loads(CONFIG), Memory())
    trainer.train(2)
    other.algorithm.load_state_dict(trainer.algorithm.state_dict())
    state = other.algorithm.optimizer.state_dict()["state"]
    assert torch.equal(state[0]["exp_avg"], trainer.algorithm.optimizer.state_dict()["state"][0]["exp_avg"])
