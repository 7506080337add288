"""The command line: one screen of sub-commands, each of which calls one function in `stages`."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from plaudit import __version__
from plaudit.errors import ConfigError, PlauditError, nearest

HELP = """\
usage: plaudit COMMAND [...] [--json] [--verbose]
Trains robots from what success looks like.

commands:
  run [RECIPE] [key=value ...]   all stages, from nothing to a report
  report RUN [--out PAGE.html]   a web page of what a run has shown
  collect RECIPE [key=value ...] collect labelled episodes, or go on with it
  fit DATA [key=value ...]       fit a reward model to episodes, or of a RECIPE
  train RECIPE [key=value ...]   train a policy       (plaudit train push_cube)
  eval RUN [key=value ...]       evaluate a policy    (plaudit eval outputs/...)
  convert SRC DST --format NAME  change the layout of a data set
  process DATA                   split a data set by episode
  doctor DATA [--out PAGE.html]  look for faults in a data set
  envs [NAME]                    list envs, or the config keys of one
  recipes [NAME]                 list recipes, or print one in full
  bench [NAME ...]               measure speed

options:
  -h, --help     show this, or a command's help; --version shows the version
  --json         human display to stderr, one JSON object as stdout's last line
  --verbose      log more

key=value changes a recipe in Hydra's grammar:
  plaudit train push_cube algorithm.cfg.learning_rate=3e-4 runtime.seed=2
"""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose complaints are our errors."""

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing usage and exiting."""
        flag = message.removeprefix("unrecognized arguments: ").split()[0]
        close = nearest(flag, self._option_string_actions) if flag.startswith("-") else ""
        raise ConfigError(f"{message}.{close} See '{self.prog} --help'.")


@dataclass(frozen=True)
class Command:
    """One sub-command.

    Attributes:
        help: One line for its `--help`.
        arguments: Adds its arguments to a parser.
        run: Carries it out; returns what `--json` prints, besides what it shows to people.
    """

    help: str
    arguments: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0, 2 for a wrong config, 130 after Ctrl-C, else 1."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    try:
        result = _dispatch(words, as_json)
    except PlauditError as error:
        return _fail(str(error), error.exit_code, as_json)
    except KeyboardInterrupt:
        return _fail("interrupted", 130, as_json)
    except BrokenPipeError:
        # The reader (head, less) has gone; keep Python from complaining once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if as_json:
            _print_json({"error": f"{type(error).__name__}: {error}", "exit_code": 1})
        raise
    if as_json and result:  # Of several processes that torchrun started, only the first has something to report.
        _print_json(result)
    if result is not None and result.get("interrupted"):
        return 130
    return 0 if result is None else int(result.get("exit_code", 0))


def _dispatch(words: list[str], as_json: bool) -> dict[str, Any] | None:
    """Finds the command and runs it; `None` where there is nothing to report."""
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), None)
    flags = words[:at]
    if "--version" in flags:
        print(f"plaudit {__version__}", file=sys.stderr if as_json else sys.stdout)
        return {"version": __version__}
    if at is None or {"-h", "--help"} & set(flags):
        unknown = [flag for flag in flags if flag not in ("-h", "--help", "--json", "--verbose")]
        if unknown:
            raise ConfigError(f"unknown option '{unknown[0]}' (see 'plaudit --help').")
        print(HELP, end="", file=sys.stderr if as_json else sys.stdout)
        return {"commands": list(COMMANDS)}
    name = words[at]
    if name not in COMMANDS:
        raise ConfigError(f"unknown command '{name}'.{nearest(name, COMMANDS)}")
    args = _parse(name, flags + words[at + 1 :])
    if args is None:
        return None
    with _logging(args.verbose), contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        return COMMANDS[name].run(args)


def _parse(name: str, words: list[str]) -> argparse.Namespace | None:
    command = COMMANDS[name]
    parser = Parser(prog=f"plaudit {name}", description=command.help, allow_abbrev=False)
    command.arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object as stdout's last line")
    parser.add_argument("--verbose", action="store_true", help="log more")
    try:
        # Intermixed, so that key=value may stand before and after options.
        return parser.parse_intermixed_args(words)
    except SystemExit:  # --help has been printed
        return None


@contextlib.contextmanager
def _logging(verbose: bool) -> Iterator[None]:
    """Shows our log lines on stderr while a command runs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("plaudit: %(message)s"))
    logger = logging.getLogger("plaudit")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _fail(message: str, exit_code: int, as_json: bool) -> int:
    print(f"plaudit: error: {message}", file=sys.stderr)
    if as_json:
        _print_json({"error": message, "exit_code": exit_code})
    return exit_code


def _print_json(result: dict[str, Any]) -> None:
    sys.stderr.flush()
    print(json.dumps(_plain(result)), flush=True)


def _plain(value: Any) -> Any:
    """Valid JSON from results: paths as text, no NaN, numpy and torch scalars as numbers."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return _plain(value.item()) if hasattr(value, "item") else str(value)


def _stages() -> Any:
    """`plaudit.pipelines`, imported only once a command needs it: it brings torch and the simulators."""
    import importlib

    return importlib.import_module("plaudit.pipelines")


def _split(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The recipe, if the first word is one, and the overrides."""
    if words and "=" not in words[0] and not words[0].startswith(("~", "+")):
        return words[0], list(words[1:])
    return None, list(words)


def _table(rows: Sequence[dict[str, Any]]) -> None:
    """Prints rows in columns; the last one as wide as it is."""
    cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)] if cells else []
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(padded).rstrip())


def _train_arguments(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="RECIPE, key=value", help="a recipe or file, then overrides")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a .json or .yaml file of your own")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run's folder")
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def _train(args: argparse.Namespace) -> dict[str, Any]:
    from plaudit.utils.threads import wait_quietly

    wait_quietly()  # A policy that looks at pictures learns with several threads, and a fit may come first.
    recipe, overrides = _split(args.words)
    if args.resume is not None:
        if recipe is not None or args.config is not None:
            raise ConfigError("--resume goes on with the run's own config; leave out the recipe and --config.")
        return dict(_stages().resume(args.resume, overrides, quiet=args.quiet))
    stages = _stages()
    return dict(stages.fit_and_train(*stages.load_training(recipe, overrides, args.config), quiet=args.quiet))


def _run_arguments(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="RECIPE, key=value", help="a recipe or file, then overrides")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a .json or .yaml file of your own")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run's folder")
    redo = "do this stage again: collect, fit, train or compare; only with --resume"
    parser.add_argument("--redo", action="append", default=[], metavar="STAGE", help=redo)
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def _run(args: argparse.Namespace) -> dict[str, Any]:
    from plaudit.utils.threads import wait_quietly

    wait_quietly()
    recipe, overrides = _split(args.words)
    if args.resume is not None:
        if recipe is not None or args.config is not None:
            raise ConfigError("--resume goes on with the run's own config; leave out the recipe and --config.")
        return dict(_stages().resume_run(args.resume, overrides, redo=args.redo, quiet=args.quiet))
    if args.redo:
        raise ConfigError("--redo does a stage of a run again; name the run with --resume RUN.")
    stages = _stages()
    recipe = "quickstart" if recipe is None and args.config is None else recipe
    return dict(stages.run(stages.load_run(recipe, overrides, args.config), quiet=args.quiet))


def _report_arguments(parser: Parser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, a training or a fit")
    parser.add_argument("--out", type=Path, metavar="PAGE.html", help="where to; default RUN/report.html")
    parser.add_argument("--quiet", action="store_true", help="say nothing")


def _report(args: argparse.Namespace) -> dict[str, Any]:
    return dict(_stages().report(args.run, args.out, quiet=args.quiet))


def _collect_arguments(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="RECIPE, key=value", help="a recipe or file, then overrides")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a .json or .yaml file of your own")
    parser.add_argument("--quiet", action="store_true", help="no live table")


def _collect(args: argparse.Namespace) -> dict[str, Any]:
    recipe, overrides = _split(args.words)
    stages = _stages()
    return dict(stages.collect(stages.load(recipe, overrides, args.config, trains=False), quiet=args.quiet))


def _fit_arguments(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="DATA or RECIPE, key=value", help="a data set, then overrides")
    parser.add_argument("--data", type=Path, metavar="DATA", help="the data set, beside a recipe or a file")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a .json or .yaml file of your own")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a fit's folder")
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def _fit(args: argparse.Namespace) -> dict[str, Any]:
    from plaudit.utils.threads import wait_quietly

    wait_quietly()
    recipe, overrides = _split(args.words)
    data = args.data
    if args.resume is not None:
        if recipe is not None or args.config is not None or data is not None:
            raise ConfigError("--resume goes on with the fit's own config; leave out the data, recipe and --config.")
        return dict(_stages().resume_fit(args.resume, overrides, quiet=args.quiet))
    if recipe is not None and data is None and _is_data(recipe):
        data, recipe = Path(recipe), None
    stages = _stages()
    return dict(stages.fit(stages.load_fit(recipe, overrides, args.config, data), quiet=args.quiet))


def _is_data(word: str) -> bool:
    """Whether a word is a data set, and not a recipe: a path, or what is there already, and no config file."""
    path = Path(word)
    return (path.exists() or len(path.parts) > 1) and path.suffix not in (".yaml", ".yml", ".json")


def _eval_arguments(parser: Parser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder or a checkpoint")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the run's config")
    parser.add_argument("--episodes", type=int, metavar="N", help="how many; default runtime.eval_episodes")
    parser.add_argument("--video", action="store_true", help="film some of them")
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def _eval(args: argparse.Namespace) -> dict[str, Any]:
    if args.episodes is not None and args.episodes < 1:
        raise ConfigError(f"--episodes must be at least 1, got {args.episodes}.")
    stages = _stages()
    return dict(stages.evaluate(args.run, args.overrides, episodes=args.episodes, video=args.video, quiet=args.quiet))


def _envs_arguments(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an env id, to list its config keys")


def _envs(args: argparse.Namespace) -> dict[str, Any]:
    if args.name is None:
        rows = list(_stages().envs())
        _table(rows)
        return {"envs": rows}
    rows = list(_stages().env_keys(args.name))
    _table(rows)
    return {"env": args.name, "keys": rows}


def _recipes_arguments(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="NAME, key=value", help="a recipe to print, with overrides")


def _recipes(args: argparse.Namespace) -> dict[str, Any]:
    from plaudit.config.loader import recipe_names

    if not args.words:
        rows = [{"name": name, "description": text} for name, text in recipe_names().items()]
        _table(rows)
        return {"recipes": rows}
    from plaudit.config.loader import to_yaml
    from plaudit.config.run_config import has_stages
    from plaudit.config.structured import to_dict

    recipe, overrides = _split(args.words)
    if recipe is not None and has_stages(recipe):
        config = _stages().load_run(recipe, overrides).to_dict()
    else:
        config = to_dict(_stages().load(recipe, overrides, None))
    print(to_yaml(config), end="")
    return {"recipe": recipe, "config": config}


def _bench_arguments(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; all by default")
    parser.add_argument("--quick", action="store_true", help="shorter and less exact")


def _bench(args: argparse.Namespace) -> dict[str, Any]:
    return dict(_stages().bench(args.names, quick=args.quick))


def _convert_arguments(parser: Parser) -> None:
    parser.add_argument("source", type=Path, metavar="SRC", help="a data set in any layout that is known")
    parser.add_argument("target", type=Path, metavar="DST", help="a new or empty folder")
    parser.add_argument("--format", default="plaudit", metavar="NAME", help="the layout of DST; default plaudit")
    parser.add_argument("--from", dest="source_format", metavar="NAME", help="the layout of SRC; default: by looking")
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def _convert(args: argparse.Namespace) -> dict[str, Any]:
    stages = _stages()
    return dict(
        stages.convert(args.source, args.target, args.format, source_format=args.source_format, quiet=args.quiet)
    )


def _process_arguments(parser: Parser) -> None:
    parser.usage = "plaudit process DATA [options]"
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, max_help_position=32)
    parser.add_argument("data", type=Path, metavar="DATA", help="a data set in any layout that is known")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to; default DATA/splits/default")
    parser.add_argument("--format", metavar="NAME", help="the layout of DATA; default: by looking")
    parser.add_argument("--val-fraction", type=float, metavar="F", help="of the episodes; default 0.15")
    parser.add_argument("--test-fraction", type=float, metavar="F", help="of the episodes; default 0.15, 0 for none")
    parser.add_argument("--seed", type=int, metavar="N", help="draws episodes and frames; default 0")
    parser.add_argument("--num-samples-per-episode", type=int, metavar="N", help="in training; default all frames")
    parser.add_argument("--fail-success-ratio", type=float, metavar="F", help="in training; default as it is")
    still = "in training, keep frames that an action of zero led to"
    parser.add_argument("--keep-stationary", action="store_false", dest="drop_stationary", default=None, help=still)
    last = "in training, thin out the last frame as any other"
    parser.add_argument("--no-keep-last-frame", action="store_false", dest="keep_last_frame", default=None, help=last)


def _process(args: argparse.Namespace) -> dict[str, Any]:
    keys = ("val_fraction", "test_fraction", "seed", "num_samples_per_episode", "fail_success_ratio")
    flags = ("drop_stationary", "keep_last_frame")
    given = {key: getattr(args, key) for key in (*keys, *flags) if getattr(args, key) is not None}
    return dict(_stages().process(args.data, format=args.format, out=args.out, **given))


def _doctor_arguments(parser: Parser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="a data set in any layout that is known")
    parser.add_argument("--splits", type=Path, metavar="DIR", help="its splits; default DATA/splits/default")
    parser.add_argument("--format", metavar="NAME", help="the layout of DATA; default: by looking")
    parser.add_argument("--out", type=Path, metavar="PAGE.html", help="a web page with pictures")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _doctor(args: argparse.Namespace) -> dict[str, Any]:
    return dict(_stages().doctor(args.data, format=args.format, splits=args.splits, out=args.out, quiet=args.quiet))


COMMANDS = {
    "run": Command("Run all stages, or go on with it: a recipe's, quickstart by default.", _run_arguments, _run),
    "report": Command("Write a web page of what a run has shown.", _report_arguments, _report),
    "collect": Command("Collect labelled episodes, or go on with it.", _collect_arguments, _collect),
    "fit": Command("Fit a reward model to episodes, or go on with it.", _fit_arguments, _fit),
    "train": Command("Train a policy from a recipe, a file, or where a run stopped.", _train_arguments, _train),
    "eval": Command("Evaluate a trained policy.", _eval_arguments, _eval),
    "convert": Command("Change the layout of a data set.", _convert_arguments, _convert),
    "process": Command("Split a data set into train, val and test.", _process_arguments, _process),
    "doctor": Command("Look for faults in a data set; exit code 1 if one spoils a fit.", _doctor_arguments, _doctor),
    "envs": Command("List envs, or the config keys of one.", _envs_arguments, _envs),
    "recipes": Command("List recipes, or print one in full.", _recipes_arguments, _recipes),
    "bench": Command("Measure speed.", _bench_arguments, _bench),
}
