"""Kinds of wrong config: one message with file, key and the nearest valid key, exit code 2, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from plaudit.cli import main

GOOD = """\
runtime: {exp_name: run, iterations: 2, rollout_steps: 8}
env: {id: PushCube, cfg: {num_envs: 4}}
policy: {actor: {type: mlp}, critic: {type: mlp}}
algorithm: {cfg: {batch_size: 32}}
"""

# name: (text replaced in the good file, by what, what the message must say)
IN_FILE = {
    "unknown section": ("runtime:", "runtmie:", ["runtmie: unknown key", "Did you mean 'runtime'?"]),
    "unknown key": ("iterations", "iteratons", ["runtime.iteratons: unknown key", "Did you mean 'iterations'?"]),
    "key in the wrong place": ("policy:", "seed: 3\npolicy:", ["seed: unknown key", "Did you mean 'runtime.seed'?"]),
    "unknown env key": ("num_envs", "num_env", ["env.cfg.num_env: unknown", "Did you mean 'num_envs'?"]),
    "unknown algorithm key": (
        "{batch_size: 32}",
        "{lerning_rate: 1}",
        ["algorithm.cfg.lerning_rate: unknown key, given 1 (int)", "Did you mean 'learning_rate'?"],
    ),
    "unknown policy key": ("policy: {", "policy: {cfg: {squish: 1}, ", ["policy.cfg.squish:", "'squash'"]),
    "overlay key": ("id: PushCube,", "id: PushCube, eval: {num_evns: 1},", ["env.eval.num_evns:", "'num_envs'"]),
    "overlay type": ("id: PushCube,", "id: PushCube, train: {num_envs: x},", ["env.train.num_envs: expected int"]),
    "wrong type": ("iterations: 2", "iterations: two", ["runtime.iterations: expected int, got 'two' (str)"]),
    "learning beside acting": (
        "iterations: 2",
        "mode: async, iterations: 2",
        ["runtime.mode: async is for algorithm.name sac", "ppo cannot: use sync"],
    ),
    "wrong type of a part": ("num_envs: 4", "num_envs: 4.5", ["env.cfg.num_envs: expected int, got 4.5 (float)"]),
    "wrong choice": ("type: mlp", "type: mpl", ["policy.actor.type: expected one of", "Did you mean 'mlp'?"]),
    "missing value": ("id: PushCube, ", "", ["env.id: missing required value"]),
    "missing network": ("actor: {type: mlp}, ", "", ["policy.actor: missing required value"]),
    "out of range": ("iterations: 2", "iterations: 0", ["runtime.iterations: must be at least 1, got 0"]),
    "out of range in a part": (
        "{batch_size: 32}",
        "{gamma: 1.5}",
        ["algorithm.cfg.gamma: must be between 0 and 1, got 1.5"],
    ),
    "unknown env": ("PushCube", "PushCub", ["env.id: unknown env 'PushCub'", "Did you mean 'PushCube'?"]),
    "unknown algorithm": ("{cfg:", "{name: pop, cfg:", ["algorithm.name: unknown algorithm 'pop'", "'ppo'"]),
    "batch larger than a rollout": ("batch_size: 32", "batch_size: 33", ["algorithm.cfg.batch_size: 33", "4 x 8 = 32"]),
    "no metric": (
        "{exp_name",
        "{best_metric: eval/sucess, exp_name",
        ["runtime.best_metric: expected one of 'auto', 'return',", "Did you mean 'eval/success_once'?"],
    ),
    "images for an mlp": ("num_envs: 4", "num_envs: 4, obs_mode: rgb", ["policy.actor.type: 'mlp' cannot read images"]),
    "no images for a cnn": ("type: mlp", "type: cnn", ["policy.actor.type: 'cnn' needs images"]),
    "no images to move": (
        "batch_size: 32",
        "batch_size: 32, image_shift: 2",
        ["algorithm.cfg.image_shift: moves images, but"],
    ),
    "an encoder for nobody": (
        "policy: {",
        "policy: {cfg: {encoder: resnet10}, ",
        ["policy.cfg.encoder: is for networks"],
    ),
    "weights for a small net": (
        "policy: {",
        "policy: {cfg: {pretrained_encoder_path: a.pt}, ",
        ["policy.cfg.pretrained_encoder_path: is for encoder resnet10"],
    ),
    "a random encoder that stays so": (
        "policy: {",
        "policy: {cfg: {freeze_encoder: true}, ",
        ["policy.cfg.freeze_encoder: needs pretrained_encoder_path"],
    ),
    "two kinds of observation": ("id: PushCube,", "id: PushCube, eval: {obs_mode: rgb},", ["env.eval.obs_mode: 'rgb'"]),
    "stop without evaluations": ("{exp_name", "{stop_at: 1, eval_freq: 0, exp_name", ["runtime.stop_at: needs"]),
    "not YAML": ("runtime: {", "runtime: {{", ["not valid YAML", "line 2, column 1"]),
    "key twice": ("policy:", "env: {}\npolicy:", ["not valid YAML", "duplicate key env"]),
    "bad interpolation": ("exp_name: run", "exp_name: '${nope.x}'", ["runtime.exp_name: ", "nope"]),
    "unknown default": ("runtime:", "defaults: [push_cub]\nruntime:", ["no config 'push_cub'", "'push_cube'"]),
    "cycle": ("runtime:", "defaults: [wrong]\nruntime:", ["defaults: these files include each other"]),
    "unsupported default": ("runtime:", "defaults: [override env: x]\nruntime:", ["defaults: 'override env'"]),
    "defaults that are no list": ("runtime:", "defaults: push_cube\nruntime:", ["defaults: expected a list, got str"]),
}

# override: what the message must say
OVERRIDES = {
    "runtime.sede=3": ["command line: runtime.sede: unknown key, given 3 (int)", "Did you mean 'seed'?"],
    "algorithm.cfg.gama=0.9": ["command line: algorithm.cfg.gama: unknown key", "Did you mean 'gamma'?"],
    "runtime.seed=abc": ["command line: runtime.seed: expected int, got 'abc' (str)"],
    "algorithm.cfg.learning_rate=0": ["command line: algorithm.cfg.learning_rate: must be greater than 0"],
    "runtime.eval_freq=-1": ["command line: runtime.eval_freq: must not be negative, got -1"],
    "runtime.seed=-1": ["command line: runtime.seed: must be at least 0 and less than 4290967296, got -1 (int)"],
    "runtime.seed=4290967296": ["command line: runtime.seed: must be at least 0 and less than 4290967296"],
    "runtime.exp_name=''": ["command line: runtime.exp_name: must be a plain name, without '/' or '\\', got ''"],
    "runtime.exp_name=a/b": ["command line: runtime.exp_name: must be a plain name", "got 'a/b' (str)"],
    "runtime.exp_name='a\\b'": ["command line: runtime.exp_name: must be a plain name"],
    "runtime.exp_name='..'": ["command line: runtime.exp_name: must be a plain name", "got '..' (str)"],
    "policy.actor=null": ["command line: policy.actor: missing required value"],
    "runtime.seed=1,2": ["command line: 'runtime.seed=1,2' is a sweep"],
    "runtime.seed=range(1,5)": ["is a sweep"],
    "runtime.seed=[1": ["command line: 'runtime.seed=[1' is not an override"],
    "runtime.seed": ["command line: 'runtime.seed' is not an override", "key=value"],
    "+runtime.iterations=3": ["command line: '+runtime.iterations=3': the key is there already"],
    "env.train.num_envs=3": ["batch_size: 32", "env.train.num_envs x", "3 x 8 = 24 (env.train.num_envs from command"],
    "~runtime.iteratons": ["command line: '~runtime.iteratons': there is no key", "Did you mean 'iterations'?"],
    "~runtime.iterations=3": ["the value there is 2"],
    "env/x=y": ["command line: 'env/x=y' chooses from a config group"],
    "algorithm=ppo": ["command line: algorithm: expected a mapping", "'ppo' (str)"],
}


def run(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
    """Trains with a wrong config; returns the message after checking code, form and that nothing was written."""
    before = sorted(folder.rglob("*"))
    code = main(["train", *words, "--json", f"runtime.output_dir={folder / 'outputs'}"])
    captured = capsys.readouterr()
    error = captured.err.strip()
    assert code == 2
    assert error.startswith("plaudit: error: ") and "\n" not in error
    answer = json.loads(captured.out.splitlines()[-1])
    assert answer == {"error": error.removeprefix("plaudit: error: "), "exit_code": 2}
    assert sorted(folder.rglob("*")) == before
    return str(answer["error"])


def test_the_good_config_trains(tmp_path: Path, stages: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    assert main(["train", str(path), f"runtime.output_dir={tmp_path / 'outputs'}"]) == 0
    assert (tmp_path / "outputs" / "run").is_dir()


@pytest.mark.parametrize("kind", IN_FILE)
def test_wrong_file(kind: str, tmp_path: Path, stages: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, expected = IN_FILE[kind]
    assert old in GOOD
    path = tmp_path / "wrong.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    message = run(capsys, tmp_path, str(path))
    for part in [f"{path}: ", *expected]:
        assert part in message


@pytest.mark.parametrize("override", OVERRIDES)
def test_wrong_override(override: str, tmp_path: Path, stages: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    message = run(capsys, tmp_path, str(path), override)
    for part in OVERRIDES[override]:
        assert part in message


def test_each_value_is_blamed_on_the_file_that_set_it(
    tmp_path: Path, stages: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base.yaml").write_text(GOOD.replace("iterations: 2", "iterations: two"))
    path = tmp_path / "main.yaml"
    path.write_text("defaults: [base]\nruntime: {seed: 1}\n")
    assert f"{tmp_path / 'base.yaml'}: runtime.iterations: " in run(capsys, tmp_path, str(path))
    path.write_text("defaults: [base]\nruntime: {iterations: three}\n")
    assert f"{path}: runtime.iterations: expected int, got 'three'" in run(capsys, tmp_path, str(path))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("x.json", '{"runtime": {"seed": 1,}}', ["x.json: line 1, column", "not valid JSON"]),
        ("x.json", '{"env": {}, "env": {}}', ["x.json: the key 'env' is given twice"]),
        ("x.json", "[1]", ["x.json: expected a mapping at the top, got list"]),
        ("x.toml", "", ["x.toml: a config file ends in .yaml, .yml or .json"]),
        ("x.yaml", "\udce9", ["x.yaml: cannot be read"]),
        ("x.yaml", "", ["x.yaml: env.id: missing required value"]),
    ],
)
def test_unreadable_files(
    name: str, text: str, expected: list[str], tmp_path: Path, stages: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    message = run(capsys, tmp_path, "--config", str(path))
    for part in expected:
        assert part in message


def test_missing_files_and_recipes(tmp_path: Path, stages: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD)
    message = run(capsys, tmp_path, str(tmp_path / "mien.yaml"))
    assert "mien.yaml: no such file. Did you mean 'mine.yaml'?" in message
    assert "unknown recipe 'push_cub'. Did you mean 'push_cube'?" in run(capsys, tmp_path, "push_cub")
    assert "no config given" in run(capsys, tmp_path)
