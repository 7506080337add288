"""Image encoders, their pretrained weights, and random shifts.

Reward models and policies with image observations share them.
"""
