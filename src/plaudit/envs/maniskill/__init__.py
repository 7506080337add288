"""ManiSkill 3 envs under the `VecEnv` contract."""
