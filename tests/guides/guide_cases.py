"""What the guides' blocks of config become here, and what of the guides is still to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MODULES = {
    "rlinf.envs.wrappers": "plaudit.data.recording_env",
    "rlinf.workers.reward.reward_worker": "plaudit.rewards",
    "rlinf.algorithms.rewards.embodiment": "plaudit.rewards",
    "embodichain.agents.rl.algo": "plaudit.rl",
    "embodichain.agents.rl.buffer": "plaudit.rl",
    "embodichain.agents.rl.models": "plaudit.rl",
    "embodichain.lab.gym.utils.registration": "plaudit.envs",
}
"""What the import lines of the guides become here; docs/from-the-guides.md has the same table."""

LATER = {
    "real_world/02_collect.yaml": "the address and the pose of a Franka, which is not supported yet",
    "real_world/07_train.sh": "RLPD on a Franka that acts while it learns, which is not supported yet",
}


@dataclass(frozen=True)
class Case:
    """A block of config.

    Attributes:
        base: The recipe that it changes; none for a fit, which needs none.
        values: Of some keys, in our spelling.
        under: The section that it is a part of, where it does not say.
        notices: The log lines on its foreign keys: from which to which, or only from which where it is not used.
    """

    base: str
    values: Mapping[str, Any]
    notices: Mapping[str, str] = field(default_factory=dict)
    under: str = ""


COLLECT = Case(
    "maniskill_ppo_cnn",
    {
        "reward.collect_data": True,
        "reward.use_reward_model": False,
        "reward.model.image_size": [3, 64, 64],
        "reward.data_collection.positive_dir": "./reward_data/positive",
        "reward.data_collection.negative_dir": "./reward_data/negative",
        "reward.data_collection.image_keys": ["base_camera"],
        "reward.data_collection.max_positive_trajectories": 500,
        "reward.data_collection.max_negative_trajectories": 500,
        "env.cfg.obs_mode": "rgb",
    },
    {"reward.reward_model": "reward.model", "reward.group_name": ""},
)
TRAIN = Case(
    "maniskill_ppo_cnn",
    {
        "reward.collect_data": False,
        "reward.use_reward_model": True,
        "reward.checkpoint_path": "./checkpoints/reward_model.pt",
        "reward.reward_type": "binary",
        "reward.model.hidden_dim": 256,
        "reward.model.num_spatial_blocks": 8,
        "reward.model.pretrained_encoder_path": "./resnet10_pretrained.pt",
        "reward.model.use_pretrain": True,
        "reward.model.freeze_encoder": True,
    },
    {
        "reward.reward_model": "reward.model",
        "reward.model.checkpoint_path": "reward.checkpoint_path",
        "reward.model.reward_type": "reward.reward_type",
        "reward.group_name": "",
    },
)
CONFIGS = {
    "resnet_reward/02_collect.yaml": Case(
        "maniskill_ppo_mlp",
        {
            "env.id": "maniskill:PickCube-v1",
            "env.train.frames": "always",
            "env.train.obs_mode": "state",
            "reward.collect_data": True,
            "reward.data_collection.format": "episode_pkl",
            "reward.data_collection.save_dir": "here/data",
            "reward.data_collection.max_positive_trajectories": 5000,
            "reward.data_collection.max_negative_trajectories": 5000,
        },
        {
            "env.train.reward_render_mode": "env.train.frames",
            "env.train.init_params": "env.train",
            "env.train.init_params.render_mode": "",
            "reward_data_collection": "reward.data_collection",
            "reward.data_collection.target_success": "reward.data_collection.max_positive_trajectories",
            "reward.data_collection.target_failure": "reward.data_collection.max_negative_trajectories",
        },
    ),
    "resnet_reward/05_fit.yaml": Case(
        "",
        {
            "reward.training.enabled": True,
            "reward.training.only": True,
            "reward.training.data.path": "here/data",
            "reward.training.num_epochs": 100,
            "reward.training.micro_batch_size": 64,
            "reward.training.global_batch_size": 64,
            "reward.training.optim.lr": 1e-4,
            "reward.training.save_dir": "here/../../logs/reward_checkpoints",
            "reward.training.output_checkpoint": "here/../../logs/reward_checkpoints/reward_model_best.pt",
        },
        {
            "reward_training.enabled": "reward.training.enabled",
            "reward_training.only": "reward.training.only",
            "reward_training.data_path": "reward.training.data.path",
            "reward_training.epochs": "reward.training.num_epochs",
            "reward_training.micro_batch_size": "reward.training.micro_batch_size",
            "reward_training.global_batch_size": "reward.training.global_batch_size",
            "reward_training.lr": "reward.training.optim.lr",
            "reward_training.save_dir": "reward.training.save_dir",
        },
    ),
    "resnet_reward/07_train.yaml": Case(
        "maniskill_ppo_mlp",
        {
            "runtime.resume": None,
            "reward.use_reward_model": True,
            "reward.combine_mode": "replace",
            "reward.checkpoint_path": "logs/reward_checkpoints/best_model.pt",
        },
        {
            "runner.resume_dir": "runtime.resume",
            "reward.mode": "reward.combine_mode",
            "reward.resnet": "reward.model",
            "reward.model.checkpoint_path": "reward.checkpoint_path",
            "reward.reward_model_type": "",
            "cluster": "",
        },
    ),
    "workflow_arguments/01_collect.yaml": COLLECT,
    "workflow_arguments/06_train.yaml": TRAIN,
    "workflow_arguments/08_collect.yaml": COLLECT,
    "workflow_arguments/10_train.yaml": TRAIN,
    "workflow_config/01_collect.yaml": COLLECT,
    "workflow_config/04_fit.yaml": Case(
        "",
        {
            "runtime.output_dir": "../results",
            "runtime.exp_name": "reward-model-training",
            "reward.training.training_backend": "simple",
            "reward.training.gpu_id": 0,
            "reward.training.global_batch_size": 32,
            "reward.training.num_epochs": 100,
            "reward.training.log_interval": 100,
            "reward.training.save_interval": 1000,
            "reward.training.save_dir": "../results/reward-model-training/checkpoints",
            "reward.training.optim.optimizer": "adam",
            "reward.training.optim.lr": 1e-4,
            "reward.training.optim.clip_grad": 1.0,
            "reward.training.data.positive_dir": "./reward_data/positive",
            "reward.training.data.negative_dir": "./reward_data/negative",
            "reward.model.model_type": "binary_classifier",
            "reward.model.image_keys": ["base_camera"],
            "reward.model.hidden_dim": 256,
            "reward.model.freeze_encoder": True,
        },
        {
            **{
                f"reward.{key}": f"reward.training.{key}"
                for key in (
                    *("training_backend", "gpu_id", "global_batch_size", "num_epochs", "log_interval"),
                    *("save_interval", "save_dir", "optim", "data.positive_dir", "data.negative_dir"),
                )
            },
            "reward.data.image_key": "reward.model.image_keys",
            "reward.data.num_workers": "",
            "runner.output_dir": "runtime.output_dir",
            "runner.experiment_name": "runtime.exp_name",
            "runner.task_type": "",
            "reward.group_name": "",
            "cluster": "",
        },
    ),
    "workflow_config/06_train.yaml": TRAIN,
    "real_world/01_reward.yaml": Case(
        "peg_insertion",
        {
            "reward.use_reward_model": True,
            "reward.reward_mode": "per_step",
            "reward.success_reward": 1.0,
            "reward.fail_reward": 0.0,
            "reward.reward_threshold": 0.5,
            "reward.combine_mode": "replace",
            "reward.reward_weight": 10.0,
            "reward.env_reward_weight": 0.0,
            "reward.precision": "bf16",
            "reward.checkpoint_path": "path/to/checkpoint/best_model",
            "reward.debug_save_dir": None,
            "reward.model.model_type": "resnet_reward",
            "reward.model.arch": "resnet18",
            "reward.model.image_size": [3, 128, 128],
            "reward.model.normalize": True,
        },
        {
            "reward.model.checkpoint_path": "reward.checkpoint_path",
            "reward.model.precision": "reward.precision",
            "reward.model.debug_save_dir": "reward.debug_save_dir",
            "reward.group_name": "",
        },
    ),
    "real_world/06_train.yaml": Case(
        "peg_insertion",
        {
            "reward.use_reward_model": True,
            "reward.reward_mode": "per_step",
            "reward.combine_mode": "replace",
            "reward.checkpoint_path": "logs/reward_model_realworld/checkpoints/best_model",
        },
    ),
    "real_world/08_debug.yaml": Case(
        "peg_insertion",
        {"reward.debug_save_dir": "logs/debug_images"},
        {"reward.model.debug_save_dir": "reward.debug_save_dir"},
        under="reward",
    ),
    "rl_tutorial/01_env.json": Case("pendulum", {"env.id": "PushCubeRL", "env.cfg.episode_length": 100}),
    "rl_tutorial/02_policy.json": Case(
        "push_cube", {"policy.actor.hidden_sizes": [256, 256], "policy.critic.activation": "relu"}
    ),
    "rl_tutorial/03_algorithm.json": Case("push_cube", {"algorithm.name": "ppo", "algorithm.cfg.clip_coef": 0.2}),
}
