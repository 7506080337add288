"""The command line, in process, with stand-in stages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import plaudit
from plaudit.cli import HELP, main
from plaudit.errors import CheckpointError


class Calls(ModuleType):
    """A `plaudit.pipelines` that notes how it was called."""

    def __init__(self) -> None:
        super().__init__("plaudit.pipelines")
        self.calls: list[tuple[Any, ...]] = []

    def load(self, recipe: str | None, overrides: list[str], config_file: Path | None, *, trains: bool = True) -> str:
        self.calls.append(("load", recipe, overrides, config_file, *(() if trains else ("collects",))))
        return "config"

    def load_training(self, *arguments: Any) -> tuple[None, str]:
        return None, self.load(*arguments)

    def fit_and_train(self, fitted: Any, config: Any, *, quiet: bool) -> dict[str, Any]:
        self.calls.append(("train", config, quiet))
        print("for people")
        return {"run": Path("outputs/x"), "success": float("nan"), "steps": 3}

    def collect(self, config: Any, *, quiet: bool) -> dict[str, Any]:
        self.calls.append(("collect", config, quiet))
        return {}

    def load_fit(self, recipe: str | None, overrides: list[str], config_file: Path | None, data: Path | None) -> str:
        self.calls.append(("load_fit", recipe, overrides, config_file, data))
        return "config"

    def fit(self, config: Any, *, quiet: bool) -> dict[str, Any]:
        self.calls.append(("fit", config, quiet))
        return {}

    def resume_fit(self, run: Path, overrides: list[str], quiet: bool) -> dict[str, Any]:
        self.calls.append(("resume_fit", run, overrides, quiet))
        return {}

    def resume(self, run: Path, overrides: list[str], quiet: bool) -> dict[str, Any]:
        self.calls.append(("resume", run, overrides, quiet))
        return {}

    def evaluate(
        self, run: Path, overrides: list[str], episodes: int | None, video: bool, quiet: bool
    ) -> dict[str, Any]:
        self.calls.append(("evaluate", run, overrides, episodes, video, quiet))
        return {}

    def process(self, data: Path, **settings: Any) -> dict[str, Any]:
        self.calls.append(("process", data, settings))
        return {}

    def doctor(self, data: Path, **options: Any) -> dict[str, Any]:
        self.calls.append(("doctor", data, options))
        return {"findings": ["something"], "exit_code": 1}

    def envs(self) -> list[dict[str, Any]]:
        return [{"id": "PushCube", "description": "Push."}, {"id": "A", "description": "Longer."}]

    def env_keys(self, name: str) -> list[dict[str, Any]]:
        return [{"key": "num_envs", "type": "int", "default": 1, "doc": "How many."}]

    def bench(self, names: list[str], quick: bool) -> dict[str, Any]:
        self.calls.append(("bench", names, quick))
        return {}


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setitem(sys.modules, "plaudit.pipelines", calls)
    return calls


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0 and main(["--help"]) == 0
    assert capsys.readouterr().out == HELP * 2
    assert len(HELP.splitlines()) <= 24 and max(map(len, HELP.splitlines())) <= 80


@pytest.mark.parametrize(
    "command", ["collect", "fit", "train", "eval", "convert", "process", "doctor", "envs", "recipes", "bench"]
)
def test_every_command_has_help_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--json" in out and "--verbose" in out and len(out.splitlines()) <= 24


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"plaudit {plaudit.__version__}\n"


def test_fit_takes_data_or_a_recipe(stages: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for words, loaded in (
        ([str(data), "a=1"], (None, ["a=1"], None, data)),
        (["push_cube", "a=1"], ("push_cube", ["a=1"], None, None)),
        (["push_cube", "--data", str(data)], ("push_cube", [], None, data)),
        ([str(tmp_path / "mine.yaml")], (str(tmp_path / "mine.yaml"), [], None, None)),
        (["--config", "f.json", "a=1"], (None, ["a=1"], Path("f.json"), None)),
    ):
        stages.calls.clear()
        assert main(["fit", *words, "--quiet"]) == 0
        assert stages.calls == [("load_fit", *loaded), ("fit", "config", True)]
    stages.calls.clear()
    assert main(["fit", "--resume", "outputs/x", "a=1"]) == 0
    assert stages.calls == [("resume_fit", Path("outputs/x"), ["a=1"], False)]
    assert main(["fit", str(data), "--resume", "outputs/x"]) == 2
    assert "leave out the data" in capsys.readouterr().err


def test_train_json_goes_last_on_stdout_and_the_rest_to_stderr(
    stages: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "push_cube", "--json", "runtime.seed=2", "--quiet"]) == 0
    assert stages.calls == [("load", "push_cube", ["runtime.seed=2"], None), ("train", "config", True)]
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"run": "outputs/x", "success": None, "steps": 3}
    assert captured.err == "for people\n"


def test_train_with_a_file_and_overrides_only(stages: Calls) -> None:
    assert main(["train", "runtime.seed=2", "--config", "a.json", "~env.cfg"]) == 0
    assert stages.calls[0] == ("load", None, ["runtime.seed=2", "~env.cfg"], Path("a.json"))


def test_resume(stages: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", "outputs/x", "runtime.iterations=9"]) == 0
    assert stages.calls == [("resume", Path("outputs/x"), ["runtime.iterations=9"], False)]
    assert main(["train", "push_cube", "--resume", "outputs/x"]) == 2
    assert "--resume" in capsys.readouterr().err


def test_collect(stages: Calls) -> None:
    assert main(["collect", "push_cube", "--quiet", "runtime.seed=2"]) == 0
    assert main(["collect", "--config", "a.yaml"]) == 0
    assert stages.calls == [
        ("load", "push_cube", ["runtime.seed=2"], None, "collects"),
        ("collect", "config", True),
        ("load", None, [], Path("a.yaml"), "collects"),
        ("collect", "config", False),
    ]


def test_process_passes_on_only_what_is_given(stages: Calls) -> None:
    assert main(["process", "d", "--seed", "3", "--keep-stationary", "--no-keep-last-frame"]) == 0
    assert main(["process", "d", "--val-fraction", "0.2", "--test-fraction", "0", "--fail-success-ratio", "3"]) == 0
    where = {"format": None, "out": None}
    assert stages.calls == [
        ("process", Path("d"), {**where, "seed": 3, "drop_stationary": False, "keep_last_frame": False}),
        ("process", Path("d"), {**where, "val_fraction": 0.2, "test_fraction": 0.0, "fail_success_ratio": 3.0}),
    ]


def test_a_result_may_set_the_exit_code(stages: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "d", "--out", "p.html", "--quiet", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"] == ["something"]
    options = {"format": None, "splits": None, "out": Path("p.html"), "quiet": True}
    assert stages.calls == [("doctor", Path("d"), options)]


def test_eval_and_bench(stages: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "outputs/x", "--episodes", "8", "env.cfg.num_envs=4", "--video"]) == 0
    assert main(["bench", "env", "--quick"]) == 0
    assert stages.calls == [
        ("evaluate", Path("outputs/x"), ["env.cfg.num_envs=4"], 8, True, False),
        ("bench", ["env"], True),
    ]
    assert main(["eval", "outputs/x", "--episodes", "0"]) == 2
    assert main(["eval"]) == 2
    assert "RUN" in capsys.readouterr().err


def test_envs_as_a_table_and_as_json(stages: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    assert capsys.readouterr().out == "PushCube  Push.\nA         Longer.\n"
    assert main(["--json", "envs", "PushCube"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["keys"][0]["key"] == "num_envs"
    assert captured.err == "num_envs  int  1  How many.\n"


def test_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    assert "push_cube " in capsys.readouterr().out
    assert main(["recipes", "push_cube", "runtime.seed=4", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["config"]["runtime"]["seed"] == 4
    assert "seed: 4" in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian'. Did you mean 'train'?"),
        (["--jsn"], "unknown option '--jsn'"),
        (["train", "--resum", "x"], "Did you mean '--resume'?"),
        (["eval", "x", "--episodes", "many"], "--episodes"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    words: list[str], message: str, stages: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("plaudit: error: ") and message in error and "\n" not in error


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [(CheckpointError("no checkpoint"), 1, "no checkpoint"), (KeyboardInterrupt(), 130, "interrupted")],
)
def test_exit_codes(
    raised: BaseException, code: int, text: str, stages: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise raised

    stages.bench = fail  # type: ignore[assignment, method-assign]
    assert main(["bench", "--json"]) == code
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"error": text, "exit_code": code}
    assert captured.err == f"plaudit: error: {text}\n"


def test_a_bug_keeps_its_traceback_and_still_ends_in_json(stages: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    stages.bench = None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError):
        main(["bench", "--json"])
    assert json.loads(capsys.readouterr().out)["exit_code"] == 1


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, plaudit, plaudit.cli; plaudit.cli.main(['--help']); "
        "heavy = {'torch', 'numpy', 'mujoco', 'gymnasium', 'hydra', 'omegaconf', 'yaml', 'rich'}; "
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_public_names_are_there() -> None:
    for name in plaudit.__all__:
        assert getattr(plaudit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = plaudit.nope


def test_a_module_in_the_folder_that_one_runs_in_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "import gymnasium\ngymnasium.register('Swing-v0', 'gymnasium.envs.classic_control:PendulumEnv')\n"
    (tmp_path / "swinging.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part not in ("", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "swinging", raising=False)
    assert main(["envs", "gym:swinging:Swing-v0"]) == 0
    assert "success_key" in capsys.readouterr().out
    assert sys.path[-1] == str(tmp_path)  # Last, so that a file of the user's hides no package.
