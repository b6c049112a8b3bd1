"""`spmdc completion`, by the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import Run

ASKED = {
    "spmdc part": ["partition"],
    "spmdc run --back": ["--backend"],
    "spmdc run --backend r": ["reference"],
    "spmdc machine ": ["list", "measure", "show"],
    "spmdc lower --emit s": ["stablehlo"],
    "spmdc completion z": ["zsh"],
    "spmdc check q": ["q.spmd"],
}
"""What is written, and what may follow."""

_BASH = """
source ./script
while read -r -d '|' line; do
  read -ra COMP_WORDS <<< "$line"; [[ "$line" == *' ' || "$line" == *machine ]] && COMP_WORDS+=('')
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); _spmdc
  ((${#COMPREPLY[@]})) || COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
  echo "${COMPREPLY[@]}"
done
"""
_FISH = "source ./script; for line in (string split '|' $argv[1]); echo (complete -C $line | string split -f1 \\t); end"

_ZSH = """
zmodload zsh/zpty
zpty terminal zsh -f -i
zpty -w terminal 'PS1=; autoload -Uz compinit; compinit -u -D; source ./script; print ready'
zpty -r -m terminal line $'*\\nready*'
zpty -n -w terminal $1$'\\t'
zpty -r -m terminal line "*$2*"
print -r -- $line
zpty -d terminal
"""
"""A terminal in which a line and a tab are typed, and what is on it once the rest of the word is."""


def script(spmdc: Run, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    made = spmdc("completion", shell)
    assert made.status == 0
    Path("script").write_text(made.out)
    Path("q.spmd").touch()
    assert subprocess.run([shell, "-n", "script"], check=False).returncode == 0


def test_bash_proposes_verbs_options_choices_and_files(spmdc: Run) -> None:
    script(spmdc, "bash")
    asked = "".join(f"{line}|" for line in ASKED)
    done = subprocess.run(["bash", "-c", _BASH], input=asked, capture_output=True, text=True, check=False)
    assert [sorted(line.split()) for line in done.stdout.splitlines()] == list(ASKED.values()), done.stderr


def test_fish_proposes_verbs_options_choices_and_files(spmdc: Run) -> None:
    script(spmdc, "fish")
    command = ["fish", "--no-config", "-c", _FISH, "|".join(ASKED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [sorted(line.split()) for line in done.stdout.splitlines()] == list(ASKED.values()), done.stderr


@pytest.mark.parametrize(
    ("asked", "added"),
    [("run q.spmd --backend r", "eference"), ("machine m", "easure"), ("part", "ition"), ("check q", ".spmd")],
)
def test_zsh_completes_verbs_options_choices_and_files(spmdc: Run, asked: str, added: str) -> None:
    script(spmdc, "zsh")
    command = ["zsh", "-f", "-c", _ZSH, "zsh", f"spmdc {asked}", added]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert added in done.stdout
