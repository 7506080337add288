"""Gymnasium envs under the `VecEnv` contract."""
