"""Fit a reward model with the arguments of RLinf's workflow guide.

Usage: `python -m plaudit.rewards.train_reward_model --help`.

A way in for those who come from there; `plaudit fit` does the same and more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

TRAINING = "reward.training"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `plaudit fit` with these arguments, and returns its exit code."""
    from plaudit.cli import main as plaudit

    return plaudit(["fit", *overrides(parse(argv))])


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments, with RLinf's workflow guide's names and defaults."""
    parser = argparse.ArgumentParser(
        prog="python -m plaudit.rewards.train_reward_model", description="Fit a reward model to .npy trajectories."
    )
    add = parser.add_argument
    add("--positive-dir", type=Path, required=True, help="folder of positive .npy trajectories")
    add("--negative-dir", type=Path, required=True, help="folder of negative .npy trajectories")
    add("--output-checkpoint", type=Path, required=True, help="file for the best weights")
    add("--pretrained-encoder-path", type=Path, help="weights of a pretrained ResNet-10; default: none")
    add("--backbone", default="resnet10", choices=["resnet10"], help="the encoder")
    add("--image-key", default="base_camera", help="the camera; default %(default)s")
    add("--image-size", type=int, nargs=3, default=[3, 64, 64], metavar=("C", "H", "W"), help="default 3 64 64")
    add("--batch-size", type=int, default=32, help="default %(default)s")
    add("--epochs", type=int, default=100, help="default %(default)s")
    add("--lr", type=float, default=1e-4, help="default %(default)s")
    add("--hidden-dim", type=int, default=256, help="default %(default)s")
    add("--num-spatial-blocks", type=int, default=8, help="default %(default)s")
    add("--visualize-positive", action="store_true", help="first write all success frames as pictures")
    add("--vis-output-dir", type=Path, default=Path("positive_samples_vis"), help="default %(default)s")
    return parser.parse_args(argv)


def overrides(args: argparse.Namespace) -> list[str]:
    """The same in our words. RLinf's workflow guide trains a head on a frozen encoder, with Adam at a constant rate."""
    pretrained = args.pretrained_encoder_path
    values = {
        "reward.model.model_type": "binary_classifier",
        "reward.model.image_keys": f"[{_quoted(args.image_key)}]",
        "reward.model.image_size": args.image_size,
        "reward.model.hidden_dim": args.hidden_dim,
        "reward.model.num_spatial_blocks": args.num_spatial_blocks,
        "reward.model.use_pretrain": pretrained is not None,
        "reward.model.pretrained_encoder_path": "null" if pretrained is None else _quoted(pretrained),
        f"{TRAINING}.data.positive_dir": _quoted(args.positive_dir),
        f"{TRAINING}.data.negative_dir": _quoted(args.negative_dir),
        f"{TRAINING}.global_batch_size": args.batch_size,
        f"{TRAINING}.num_epochs": args.epochs,
        f"{TRAINING}.optim.optimizer": "adam",
        f"{TRAINING}.optim.lr": args.lr,
        f"{TRAINING}.optim.lr_schedule": "constant",
        f"{TRAINING}.optim.warmup_steps": 0,
        f"{TRAINING}.save_dir": _quoted(_folder(args.output_checkpoint)),
        f"{TRAINING}.output_checkpoint": _quoted(args.output_checkpoint),
        f"{TRAINING}.visualize_positive": args.visualize_positive,
        f"{TRAINING}.vis_output_dir": _quoted(args.vis_output_dir),
    }
    return [f"{key}={value}" for key, value in values.items()]


def _folder(checkpoint: Path) -> Path:
    """For all else that a fit writes: beside the checkpoint, as its own folder may be anything, such as a home."""
    return checkpoint.with_suffix("") if checkpoint.suffix else checkpoint.with_name(f"{checkpoint.name}_fit")


def _quoted(text: str | Path) -> str:
    """A text as one value of an override, whatever is in it."""
    return "'" + str(text).replace("'", r"\'") + "'"


if __name__ == "__main__":
    sys.exit(main())
