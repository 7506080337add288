"""Other systems' files, written by hand as those systems write them, from an episode whose content is known."""

from __future__ import annotations

import csv
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from plaudit.data import Episode, EpisodeStore

CAMERA = "base_camera"


def dump(file: Path, content: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(content))
    return file


def npy(root: Path, episode: Episode, number: int = 0) -> Path:
    images = {name: np.float32(pixels.transpose(0, 3, 1, 2)) / 255 for name, pixels in episode.frames.items()}
    file = root / ("positive" if episode.positive else "negative") / f"{number:06d}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, {"images": images, "labels": episode.labels.astype(np.float32)}, allow_pickle=True)
    return file


def episode_pkl(root: Path, episode: Episode, number: int = 0) -> Path:
    frames = [
        {
            "obs": {"main_images": episode.frames[CAMERA][t], "states": episode.state[t]},
            "action": episode.actions[t - 1],
            "reward": float(episode.rewards[t - 1]),
            "terminated": bool(episode.terminated[t - 1]),
            "truncated": bool(episode.truncated[t - 1]),
            "done": bool(episode.terminated[t - 1] | episode.truncated[t - 1]),
            "grasp": bool(episode.flags["grasp"][t]),
            "success": bool(episode.labels[t]),
            "info": {},
        }
        for t in range(1, episode.length + 1)
    ]
    content = {
        "frames": frames,
        "num_frames": len(frames),
        "grasp": True,
        "success": episode.positive,
        "done": True,
        "label": int(episode.positive),
        "metadata": {"env": "PickCube", "seed": np.int64(7)},
    }
    return dump(root / ("success" if episode.positive else "failure") / f"episode_{number:06d}.pkl", content)


def transitions(episode: Episode, *, done: bool = True) -> list[dict[str, Any]]:
    def seen(t: int) -> dict[str, Any]:
        pixels = torch.from_numpy(episode.frames[CAMERA][t].astype(np.float32) / 255)
        return {"states": torch.from_numpy(episode.state[t]), "main_images": pixels}

    return [
        {
            "transitions": {"obs": seen(t), "next_obs": seen(t + 1)},
            "action": torch.from_numpy(episode.actions[t]),
            "rewards": torch.tensor([float(episode.labels[t + 1])]),
            "dones": torch.tensor([done and t == episode.length - 1]),
            "terminations": torch.tensor([False]),
            "truncations": torch.tensor([bool(episode.truncated[t])]),
        }
        for t in range(episode.length)
    ]


def realworld_raw(root: Path, *episodes: Episode) -> Path:
    return dump(root / "data.pkl", [transition for episode in episodes for transition in transitions(episode)])


def realworld(root: Path, episode: Episode, number: int = 0) -> Path:
    steps = range(episode.length)
    content = {
        "mode": "train",
        "rank": 0,
        "env_idx": 0,
        "episode_id": number,
        "success": episode.positive,
        "observations": [
            {"main_images": episode.frames[CAMERA][t], "states": torch.from_numpy(episode.state[t])} for t in steps
        ],
        "actions": [torch.from_numpy(episode.actions[t]) for t in steps],
        "rewards": [torch.tensor(float(episode.rewards[t])) for t in steps],
        "terminated": [False for _ in steps],
        "truncated": [bool(episode.truncated[t]) for t in steps],
        "infos": [{"is_obj_placed": bool(episode.labels[t + 1])} for t in steps],
    }
    word = "success" if episode.positive else "fail"
    return dump(root / f"rank_0_env_0_episode_{number}_{word}.pkl", content)


def rlinf(root: Path, episode: Episode, number: int = 0, info: Callable[[bool], Any] | None = None) -> Path:
    info = info or (lambda success: {"success": torch.tensor(success)})
    instants = range(episode.length + 1)
    content = {
        "rank": 0,
        "env_idx": 1,
        "episode_id": number,
        "step": 9,
        "success": episode.positive,
        "observations": [
            {
                "main_images": torch.from_numpy(episode.frames[CAMERA][t]),
                "wrist_images": None,
                "states": torch.from_numpy(episode.state[t]),
                "task_descriptions": "pick the cube",
            }
            for t in instants
        ],
        "actions": [torch.from_numpy(action) for action in episode.actions],
        "rewards": [0.0, *(torch.tensor(float(reward)) for reward in episode.rewards)],
        "terminated": [False, *(torch.tensor(False) for _ in episode.actions)],
        "truncated": [False, *(torch.tensor(bool(end)) for end in episode.truncated)],
        "infos": [{}, *(info(bool(label)) for label in episode.labels[1:])],
    }
    word = "success" if episode.positive else "fail"
    return dump(root / f"rank_0_env_1_episode_{number}_step_9_{word}.pkl", content)


def rlinf_pt(root: Path, episode: Episode) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    images = [torch.from_numpy(pixels) for pixels in episode.frames[CAMERA]]
    torch.save({"images": images, "labels": episode.labels.tolist(), "metadata": {"n": 6}}, root / "train.pt")
    return root / "train.pt"


def hilserl(root: Path, episode: Episode) -> Path:
    """Two files: the steps until success, and those after; returns the first."""

    def seen(t: int) -> dict[str, Any]:
        return {"wrist_1": episode.frames[CAMERA][t][None], "state": episode.state[t][None]}

    sorted_: dict[bool, list[Any]] = {True: [], False: []}
    for t in range(episode.length):
        step = {
            "observations": seen(t),
            "actions": episode.actions[t],
            "next_observations": seen(t + 1),
            "rewards": 0,
            "masks": 1.0 - (t == episode.length - 1),
            "dones": t == episode.length - 1,
        }
        sorted_[bool(episode.labels[t + 1])].append(step)
    dump(root / "cube_200_success_images_2025-01-28_09-20-02.pkl", sorted_[True])
    return dump(root / "cube_failure_images_2025-01-28_09-20-02.pkl", sorted_[False])


def images(root: Path, episode: Episode) -> Path:
    folder = root / "take1"
    for name, pixels in episode.frames.items():
        (folder / name).mkdir(parents=True)
        for t, picture in enumerate(pixels):
            Image.fromarray(picture).save(folder / name / f"{t:06d}.png")
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["frame", "label"], *enumerate(episode.labels)])
    return folder / "labels.csv"


def class_folders(root: Path, episode: Episode) -> Path:
    for t, picture in enumerate(episode.frames[CAMERA]):
        file = root / ("success" if episode.labels[t] else "failure") / f"take1_frame{t:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(file)
    return file


def plaudit(root: Path, episode: Episode) -> Path:
    store = EpisodeStore.create(root)
    store.add([episode])
    return store.file(episode.id)


LAYOUTS: dict[str, tuple[str, Callable[[Path, Episode], Path]]] = {
    "class_folders": ("images", class_folders),
    **{
        layout.__name__: (layout.__name__, layout)
        for layout in (npy, episode_pkl, realworld_raw, realworld, rlinf, rlinf_pt, hilserl, images, plaudit)
    },
}
"""Every layout: the name of its format, and what writes it and returns one of its files."""
