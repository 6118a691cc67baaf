#!/usr/bin/env python3
"""Completion of sparsectl in an interactive bash: what a line is after TAB, and what was offered; also in
zsh and fish where they are installed. And what keys do to `top`.

  completion_test.py SPARSED SPARSECTL

Bash breaks words at = : and @, and replaces a part of a word alone; only a real one shows what becomes
of the line.
"""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from running import running

SECONDS = 20  # for one answer
RC = r"""
PS1='$ '
bind 'set bell-style none' 'set show-all-if-ambiguous on' 'set page-completions off'
bind 'set enable-bracketed-paste off' 'set completion-query-items 0'
bind 'set horizontal-scroll-mode off'
say() { printf '<<%s>>\n' "$READLINE_LINE"; }
bind -x '"\C-t": say'
source <(sparsectl completion bash)
echo re''ady
"""


# What is typed into others to begin with: Control-T shows the line.
ZSH = """autoload -U compinit && compinit -u -D; PS1='$ '; source <(sparsectl completion zsh)
say() { print -r -- "<<$BUFFER>>"; }; zle -N say; bindkey '^T' say; echo re''ady
"""
FISH = """sparsectl completion fish | source; bind \\ct 'echo "<<"(commandline)">>"'; echo re''ady
"""


class Shell:
    """An interactive shell in a terminal of its own."""

    def __init__(self, command, folder, environment):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)

    def until(self, end):
        """What it prints up to that."""
        said, deadline = "", time.monotonic() + SECONDS
        while end not in said:
            if not select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))[0]:
                raise SystemExit(f"the shell says {said!r}, and not {end!r}")
            said += os.read(self.terminal, 65536).decode(errors="replace")
        return said

    def begin_with(self, commands):
        time.sleep(1)  # until it reads
        os.write(self.terminal, commands.encode())
        self.until("ready\r\n")
        time.sleep(1)
        return self

    def after_tab(self, typed):
        """The line that TAB makes of it, and the words that were offered on lines of their own."""
        os.write(self.terminal, typed.encode() + b"\t\x14")
        said = self.until(">>")
        os.write(self.terminal, b"\x15\x14")  # away with the line
        self.until("<<>>")
        line = re.search(r"<<(.*)>>", said)[1]
        shown = said[:said.index("<<")].replace("\r", "").split("\n")
        return line, [word for part in shown if "sparsectl" not in part
                      for word in part.split() if word != "$"]

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


# What is typed, the line then, and what is offered where there are several.
LINES = [
    ("sparsectl buff", "sparsectl buffers ", []),
    ("sparsectl show gr", "sparsectl show graph", ["graph", "graph:2"]),
    ("sparsectl show graph:", "sparsectl show graph:2 ", []),
    ("sparsectl spmm graph --oper", "sparsectl spmm graph --operand ", []),
    # Buffers, with the @ that stands for them.
    ("sparsectl spmm graph --operand=@", "sparsectl spmm graph --operand=@", ["@first", "@second"]),
    ("sparsectl spmm graph --operand=@f", "sparsectl spmm graph --operand=@first ", []),
    ("sparsectl spmm graph --operand @s", "sparsectl spmm graph --operand @second ", []),
    ("sparsectl spmm graph -b @", "sparsectl spmm graph -b @", ["@first", "@second"]),
    ("sparsectl spmm graph -b @f", "sparsectl spmm graph -b @first ", []),
    ("sparsectl spmm graph:2 --operand=@f", "sparsectl spmm graph:2 --operand=@first ", []),
    ("sparsectl spmm graph --keep-as=", "sparsectl spmm graph --keep-as=", ["first", "second"]),
    ("sparsectl spmm graph --keep-as=f", "sparsectl spmm graph --keep-as=first ", []),
    # Files: bash's own, with what is special in their names quoted.
    ("sparsectl spmm graph --operand=B", "sparsectl spmm graph --operand=B.npy ", []),
    ("sparsectl upload my", r"sparsectl upload my\ graph.mtx ", []),
    (r"sparsectl upload my\ gr", r"sparsectl upload my\ graph.mtx ", []),
    (r"sparsectl upload my\ graph.mtx B", r"sparsectl upload my\ graph.mtx B.npy ", []),
    # Values and columns.
    ("sparsectl list --sort=non", "sparsectl list --sort=nonzeros ", []),
    ("sparsectl list --sort=-non", "sparsectl list --sort=-nonzeros ", []),
    ("sparsectl list --sort=no", "sparsectl list --sort=no", ["nodes", "nonzeros"]),
    ("sparsectl bench graph --op=sd", "sparsectl bench graph --op=sddmm ", []),
    ("sparsectl -o y", "sparsectl -o yaml ", []),
    ("x=1 sparsectl show ot", "x=1 sparsectl show other ", []),
    ("true; sparsectl  show  ot", "true; sparsectl  show  other ", []),
    ("sparsectl nonsense @", "sparsectl nonsense @", []),
]


def as_before(said):
    """Whether the terminal, of which `stty -a` tells, shows lines as they are typed."""
    return " icanon" in said and " echo " in said


def problems_of_top(folder, environment):
    """`top` in a terminal: keys and signals end it, or stop it, and the terminal is as before."""
    problems = 0
    top, ended = "sparsectl top --interval=0.2", "; echo ended $?; stty -a; echo re''ady"
    keys = "q or Ctrl-C ends this"

    def check(what, good, said):
        nonlocal problems
        if not good:
            print(f"PROBLEM top, {what}: {said!r}")
            problems += 1

    # A shell that is not interactive leaves the terminal as the program did.
    for key, code in ((b"q", 0), (b"\x03", 130), (b"\x1c", 131)):
        shell = Shell(["sh", "-c", f"trap : INT QUIT; ulimit -c 0; {top}{ended}"], folder, environment)
        shell.until(keys)
        os.write(shell.terminal, key)
        said = shell.until("ready\r\n")
        check(f"after {key!r}", f"ended {code}\r" in said and as_before(said), said)
        shell.end()

    # Nobody types where its input is elsewhere.
    shell = Shell(["sh", "-c", f"trap : INT; {top} </dev/null{ended}"], folder, environment)
    said = shell.until("Ctrl-C ends this")
    check("of no keys", keys not in said, said)
    os.write(shell.terminal, b"\x03")
    said = shell.until("ready\r\n")
    check("of no keys", "ended 130\r" in said, said)
    shell.end()

    # Ctrl-Z gives the terminal back, to whom it then belongs; in front again it reads keys, and in the
    # background a signal ends it.
    for then, typed, code in (("fg", b"q", 0), ("bg; kill -TERM %1; wait %1", b"", 143)):
        script = f"set -m; {top}; stty -a; echo stop''ped; {then}{ended}"
        shell = Shell(["sh", "-c", script], folder, environment)
        shell.until(keys)
        os.write(shell.terminal, b"\x1a")
        said = shell.until("stopped\r\n")
        check("stopped", as_before(said), said)
        os.write(shell.terminal, typed)
        said = shell.until("ready\r\n")
        check(f"after {then!r}", f"ended {code}\r" in said and as_before(said), said)
        shell.end()
    return problems


def main(sparsed, sparsectl):
    sparsectl = Path(sparsectl).resolve()
    folder = tempfile.TemporaryDirectory(prefix="sparsed-completion-")
    work = Path(folder.name, "work")
    work.mkdir()
    problems = 0
    with folder, running(sparsed, Path(folder.name, "log"), "--in-memory", "--devices=cpu") as server:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPARSED_")},
            "PATH": f"{sparsectl.parent}:{os.environ['PATH']}", "TERM": "dumb",
            "SPARSED_SERVER": server.listen, "COLUMNS": "200", "LC_ALL": "C.UTF-8",
        }

        def run(*words):
            subprocess.run([sparsectl, *words], cwd=work, env=environment, check=True,
                           stdout=subprocess.DEVNULL)

        run("generate", "matrix", "20x20", "--row-nonzeros=2", "--out=my graph.mtx")
        run("generate", "dense", "20x4", "--out=B.npy")
        for name in ("graph", "graph:2", "other"):
            run("upload", "my graph.mtx", f"--name={name}")
        for name in ("first", "second"):
            run("buffers", "put", name, "B.npy")
        # As it comes; with breaks that people set so that others' completions work; and where @ makes
        # no word by itself.
        for more in ("", "COMP_WORDBREAKS=${COMP_WORDBREAKS//[=:]}\n", "shopt -u hostcomplete\n"):
            rc = Path(work, ".rc")
            rc.write_text(more + RC)
            bash = Shell(["bash", "--init-file", str(rc), "-i"], work, environment)
            bash.until("ready\r\n$ ")
            for typed, line, offered in LINES:
                got, words = bash.after_tab(typed)
                # What bash shows is the part of the word that it would replace.
                names = sorted(re.sub(r"^--.*=", "", word) for word in words)
                if got != line or names != offered:
                    print(f"PROBLEM {more.strip()} {typed!r}: {got!r}, not {line!r}; {words}")
                    problems += 1
            bash.end()
        lines = 3 * len(LINES)
        for command, begin in ((["zsh", "-f", "-i"], ZSH), (["fish", "--no-config", "-i"], FISH)):
            if shutil.which(command[0]) is None:
                print(f"{command[0]} is not installed")
                continue
            shell = Shell(command, work, environment).begin_with(begin)
            for typed, line, offered in LINES:
                if offered:
                    continue  # how they show it is theirs
                lines += 1
                got, _ = shell.after_tab(typed)
                if got != line:
                    print(f"PROBLEM {command[0]} {typed!r}: {got!r}, not {line!r}")
                    problems += 1
            shell.end()
        problems += problems_of_top(work, environment)
    print(f"{lines} lines, {problems} wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(*sys.argv[1:]))
