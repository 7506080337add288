"""The stages: the only place that reads the config tree and connects the parts."""

from plaudit.stages.common import load
from plaudit.stages.listing import bench, env_keys, envs
from plaudit.stages.train import evaluate, resume, train

__all__ = ["bench", "env_keys", "envs", "evaluate", "load", "resume", "train"]
