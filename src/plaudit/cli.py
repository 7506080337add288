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
  train RECIPE [key=value ...]   train a policy       (plaudit train push_cube)
  eval RUN [key=value ...]       evaluate a policy    (plaudit eval outputs/...)
  envs [NAME]                    list envs, or the config keys of one
  recipes [NAME]                 list recipes, or print one in full
  bench [NAME ...]               measure speed

options:
  -h, --help     show this, or the help of a command: plaudit train --help
  --version      show the version
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
    if as_json and result is not None:
        _print_json(result)
    return 130 if result is not None and result.get("interrupted") else 0


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
    """`plaudit.stages`, imported only once a command needs it: it brings torch and the simulators."""
    import importlib

    return importlib.import_module("plaudit.stages")


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
    recipe, overrides = _split(args.words)
    if args.resume is not None:
        if recipe is not None or args.config is not None:
            raise ConfigError("--resume goes on with the run's own config; leave out the recipe and --config.")
        return dict(_stages().resume(args.resume, overrides, quiet=args.quiet))
    stages = _stages()
    config = stages.load(recipe, overrides, args.config)
    return dict(stages.train(config, quiet=args.quiet))


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
    from plaudit.config.files import recipe_names

    if not args.words:
        rows = [{"name": name, "description": text} for name, text in recipe_names().items()]
        _table(rows)
        return {"recipes": rows}
    from plaudit.config.convert import to_dict
    from plaudit.config.load import to_yaml

    recipe, overrides = _split(args.words)
    config = _stages().load(recipe, overrides, None)
    print(to_yaml(config), end="")
    return {"recipe": recipe, "config": to_dict(config)}


def _bench_arguments(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; all by default")
    parser.add_argument("--quick", action="store_true", help="shorter and less exact")


def _bench(args: argparse.Namespace) -> dict[str, Any]:
    return dict(_stages().bench(args.names, quick=args.quick))


COMMANDS = {
    "train": Command("Train a policy from a recipe, a file, or where a run stopped.", _train_arguments, _train),
    "eval": Command("Evaluate a trained policy.", _eval_arguments, _eval),
    "envs": Command("List envs, or the config keys of one.", _envs_arguments, _envs),
    "recipes": Command("List recipes, or print one in full.", _recipes_arguments, _recipes),
    "bench": Command("Measure speed.", _bench_arguments, _bench),
}
