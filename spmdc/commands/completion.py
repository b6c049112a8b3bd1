"""`spmdc completion`: completion scripts for shells, generated from the parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from spmdc.commands.shared.options import Options, parse_path


@dataclass(frozen=True, slots=True)
class _Argument:
    """An option with `names`, or a positional argument without; its possible values, and its help."""

    names: tuple[str, ...]
    choices: tuple[str, ...]
    takes_value: bool
    takes_file: bool
    help: str


@dataclass(frozen=True, slots=True)
class _Verb:
    name: str
    help: str
    arguments: tuple[_Argument, ...]

    @property
    def options(self) -> list[_Argument]:
        return [a for a in self.arguments if a.names]

    @property
    def places(self) -> list[_Argument]:
        return [a for a in self.arguments if not a.names]

    @property
    def words(self) -> list[str]:
        """The words that are proposed in place of a file: the choices, if the verb has some."""
        return [word for a in self.places for word in a.choices]


def run(options: Options, *, shell: str, parser: argparse.ArgumentParser) -> int:
    """Prints the script for a shell."""
    print(*_SHELLS[shell](_verbs(parser), _arguments(parser)), sep="\n")
    return 0


def _verbs(parser: argparse.ArgumentParser) -> list[_Verb]:
    (verbs,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return [_Verb(name, _line(verb.description), _arguments(verb)) for name, verb in verbs.choices.items()]


def _arguments(parser: argparse.ArgumentParser) -> tuple[_Argument, ...]:
    found = (a for a in parser._actions if not isinstance(a, argparse._SubParsersAction))
    return tuple(
        _Argument(
            tuple(a.option_strings), tuple(map(str, a.choices or ())), a.nargs != 0, a.type is parse_path, _line(a.help)
        )
        for a in found
    )


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _quoted(text: str, also: str = "") -> str:
    """The text in single quotes for a shell, with characters of `also` escaped by a backslash."""
    escaped = "".join(f"\\{c}" if c in also else c for c in text)
    return "'" + escaped.replace("'", "'\\''") + "'"


def _names(arguments: Iterable[_Argument]) -> list[str]:
    return [name for a in arguments for name in a.names]


def _bash(verbs: Sequence[_Verb], top: Sequence[_Argument]) -> Iterator[str]:
    """If nothing is proposed, bash completes file names."""
    yield '# eval "$(spmdc completion bash)"'
    yield "_spmdc() {"
    yield "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} words="
    yield "  if ((COMP_CWORD == 1)); then"
    yield f"    words={_quoted(' '.join([*(v.name for v in verbs), *_names(top)]))}"
    yield "  else"
    yield '    case "$verb $previous" in'
    for verb in verbs:
        words: dict[str, list[str]] = {}
        for argument in verb.options:
            if argument.takes_value:
                words.setdefault(" ".join(argument.choices), []).extend(argument.names)
        for choices, names in words.items():
            patterns = " | ".join(f'"{verb.name} {name}"' for name in names)
            yield f"      {patterns}) words={_quoted(choices)} ;;"
    yield '      *) case "$verb $current" in'
    for verb in verbs:
        yield f'        "{verb.name} -"*) words={_quoted(" ".join(_names(verb.options)))} ;;'
        if verb.words:
            yield f'        "{verb.name} "*) words={_quoted(" ".join(verb.words))} ;;'
    yield "      esac ;;"
    yield "    esac"
    yield "  fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -o default -F _spmdc spmdc"


def _zsh(verbs: Sequence[_Verb], top: Sequence[_Argument]) -> Iterator[str]:
    yield "#compdef spmdc"
    yield '# eval "$(spmdc completion zsh)"'
    yield "_spmdc() {"
    yield "  local -a verbs=("
    yield from (f"    {_quoted(f'{v.name}:{v.help}')}" for v in verbs)
    yield "  )"
    yield "  if ((CURRENT == 2)); then"
    yield "    _describe verb verbs"
    yield f"    compadd -- {' '.join(_names(top))}"
    yield "    return"
    yield "  fi"
    yield "  local verb=$words[2]"
    yield "  shift words; ((CURRENT--))"
    yield "  case $verb in"
    for verb in verbs:
        options = [spec for a in verb.options for spec in _zsh_options(a)]
        specs = [*options, *_zsh_places(verb.places)]
        yield f"    {verb.name}) _arguments {' '.join(specs)} ;;"
    yield "  esac"
    yield "}"
    yield "(( $+functions[compdef] )) && compdef _spmdc spmdc"


def _zsh_options(argument: _Argument) -> Iterator[str]:
    said = "".join(f"\\{c}" if c in "[]:\\" else c for c in argument.help)
    value = f":value:{_zsh_action(argument)}" if argument.takes_value else ""
    yield from (_quoted(f"*{name}[{said}]{value}") for name in argument.names)


def _zsh_places(places: Sequence[_Argument]) -> Iterator[str]:
    """zsh allows the last positional argument several times."""
    for i, argument in enumerate(places, 1):
        yield _quoted(f"{i if i < len(places) else '*'}:argument:{_zsh_action(argument)}")


def _zsh_action(argument: _Argument) -> str:
    return f"({' '.join(argument.choices)})" if argument.choices else "_files" if argument.takes_file else " "


def _fish(verbs: Sequence[_Verb], top: Sequence[_Argument]) -> Iterator[str]:
    yield "# spmdc completion fish | source"
    for argument in top:
        yield f"complete -c spmdc -n __fish_use_subcommand {_fish_option(argument)}"
    for verb in verbs:
        yield f"complete -c spmdc -f -n __fish_use_subcommand -a {verb.name} -d {_quoted(verb.help, chr(92))}"
        when = f"complete -c spmdc -n '__fish_seen_subcommand_from {verb.name}'"
        if not any(a.takes_file for a in verb.places):
            yield f"{when} -f" + (f" -a {_quoted(' '.join(verb.words))}" if verb.words else "")
        yield from (f"{when} {_fish_option(argument)}" for argument in verb.options)


def _fish_option(argument: _Argument) -> str:
    names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in argument.names)
    value = ""
    if argument.takes_value:
        value = " -r -F" if argument.takes_file else f" -x -a {_quoted(' '.join(argument.choices))}"
    return f"{names}{value} -d {_quoted(argument.help, chr(92))}"


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
