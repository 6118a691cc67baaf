"""Commands that documents name and no test runs, in sentences or in blocks that do not run: is there
such a program, such a subcommand, such a flag?

Commands of sparsectl run, where nobody serves: they get as far as that, but for what a sentence leaves out.
sparsed and sparsectl are asked by --help, other programs of the repository are looked up in their
sources, those of others (kubectl, etcdctl, ...) are asked where they are installed. A flag that stands
alone (`--threads`) has to be one of any of our programs, or one of FOREIGN. Where a page names programs that
no test can run, it says so.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Where the flags and subcommands of a program are, by how a command begins; the first that fits counts.
SOURCES = (
    (r"sparsed_(corpus|reorder|scale)", r"tools/\1"),
    (r"sparsed_bench", "tests/bench/gpu"),
    (r"bench_\w+", "tests/bench"),
    (r"tools/train/papers/run", "tools/train/papers"),
    (r"tools/train/run", "tools/train/selector"),
    (r"(?:tests/fault/)?attack_(\w+)", "tests/fault"),
    (r"((?:tests|tools|deploy|docs|client)/[\w./-]+)", r"\1"),
)
# What else a sentence may say of other programs' flags: they stand alone there.
FOREIGN = ("--client-cert-auth", "--gpus", "--pids-limit", "--volumes", "--reuse-values")
ASKED = ("kubectl", "etcdctl", "cmake", "cpack", "docker", "helm", "promtool")  # for what they say to --help
# What no test has, and the programs that speak to it: a page that names one says so once, in these words.
NOT_HAD = {"Docker": ("docker",), "Kubernetes": ("kubectl", "helm"), "systemd": ("systemctl", "journalctl")}
# What sentences have in the place of a file, a number, an operation.
PLACEHOLDERS = {"FILE": "a.mtx", "OPERATION:K": "spmm:8", ":K": ":8"}
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")


@functools.cache
def said_to_help(*command):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARSED")}
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, env=environment,
                          stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr


@functools.cache
def outcome(*command):
    """Exit status and words of a command where nobody serves."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARSED")}
    environment |= {"SPARSED_SERVER": "127.0.0.1:1", "SPARSED_TIMEOUT": "50ms"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder,
                              env=environment, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


def has_flag(text, flag):
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None


@functools.cache
def code_under(path):
    """The file's text, or that of the folder's programs."""
    place = ROOT / path
    if place.is_file():
        return place.read_text(errors="replace")
    files = [file for file in sorted(place.glob("**/*")) if file.is_file() and file.suffix in
             ("", ".py", ".cc", ".cu", ".h") and "__pycache__" not in file.parts]
    return "\n".join(file.read_text(errors="replace") for file in files)


def is_flag_of_code(code, flag):
    """As C++, Python and shell scripts name their flags; CLI11's have several names in one string."""
    return has_flag(code, flag) or re.search(rf"add_(?:option|flag)\w*\(\s*\"[^\"]*{re.escape(flag)}\b", code)


def spans_of(page):
    """(line, text) of what stands between backticks outside of blocks."""
    text = re.sub(r"```.*?```|<!--.*?-->", lambda left_out: "\n" * left_out[0].count("\n"), page.read_text(),
                  flags=re.S)
    for span in re.finditer(r"`([^`]+)`", text):
        yield text.count("\n", 0, span.start()) + 1, span[1].replace("\n", " ")


def commands_in(text):
    """Each command of a line of the shell, as words: without what goes before it, and one inside another."""
    text = re.sub(r"(^|\s)#.*", "", re.sub(r"\\\s*\n\s*", "", text))
    for part in re.split(r"\|\|?|&&?|;|\n|\d?[<>]+|\$\(", text):
        words = part.split()
        while words and (re.match(r"\w+=", words[0]) or words[0] == "sudo"):
            words = words[3:] if words[0] == "sudo" and words[1:2] == ["-u"] else words[1:]
        inner = words.index("sparsectl") if words[:1] and words[0] in ASKED and "sparsectl" in words else None
        yield words[:inner]
        if inner is not None:
            yield words[inner:]


class Checker:
    def __init__(self, sparsed, sparsectl):
        self.sparsed, self.sparsectl = str(sparsed), str(sparsectl)

    @functools.cached_property
    def all_flags(self):
        """Flags of all our programs, and what is in their sources."""
        texts = [said_to_help(self.sparsed), said_to_help(self.sparsectl)]
        reference = (ROOT / "docs/reference-flags.md").read_text()  # which another test holds against --help
        folders = ("tools", "tests/bench", "tests/gpu", "client", "deploy")
        return "\n".join(texts + [reference] + [code_under(folder) for folder in folders])

    def problems_of_page(self, page):
        """Of all that stands between backticks."""
        for line, text in spans_of(page):
            for problem in [*self.problems(text), *self.problems_of_flags(text), *self.wrong_uses(text)]:
                yield f"{page.relative_to(ROOT)}:{line}: `{text}`: {problem}"

    @staticmethod
    def not_said(page):
        """Programs that no test runs, where the page does not say so."""
        text = page.read_text()
        said = " ".join(re.findall(r"No test has ([^.:;]*)", text))
        named = {words[0] for _, span in spans_of(page) for words in commands_in(span) if len(words) > 1}
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M):
            named |= {words[0] for words in commands_in(block) if words}
        for what, programs in NOT_HAD.items():
            if named.intersection(programs) and what not in said:
                found = ", ".join(sorted(named.intersection(programs)))
                yield f"{page.relative_to(ROOT)}: it names {found} and does not say 'No test has {what}'"

    def problems(self, text):
        """Of commands of the shell."""
        for words in commands_in(text):
            if words:
                yield from self.problems_of_command(words)

    def wrong_uses(self, text):
        """What sparsectl says to its commands in a sentence that are wrong, not only cut short."""
        for words in commands_in(re.sub(r"\[[^]]*\]", "", text)):
            if words[:1] != ["sparsectl"] or len(words) < 2:
                continue
            arguments = " ".join(words[1:])
            for name, stands_for in PLACEHOLDERS.items():
                arguments = arguments.replace(name, stands_for)
            status, said = outcome(self.sparsectl, *arguments.split())
            if status == 2 and not re.search(r"is missing|lacks its", said):
                yield f"sparsectl says: {said.strip()}"

    def problems_of_flags(self, text):
        if text.startswith("--"):
            flag = FLAG.match(text)
            if flag and flag[0] not in FOREIGN and not has_flag(self.all_flags, flag[0]):
                yield f"no program has {flag[0]}"

    def problems_of_command(self, words):
        flags = FLAG.findall(" ".join(words))
        name = words[0]
        if Path(name).name == "sparsed":
            said = said_to_help(self.sparsed)
            yield from (f"sparsed has no {flag}" for flag in flags if not has_flag(said, flag))
        elif Path(name).name == "sparsectl":
            yield from self.problems_of_sparsectl(words[1:], flags)
        elif name == "deploy/install-packages":
            sections = re.findall(r"^\[(.*)\]$", (ROOT / "deploy/packages.txt").read_text(), re.M)
            yield from (f"there is no section [{word}] of packages"
                        for word in words[1:] if word not in sections)
        elif name in ASKED:
            yield from self.problems_of_others(words, flags)
        else:
            yield from problems_of_sources(re.sub(r"^build/\w+/(?:\w+/)*(?=\w+$)", "", name), flags)

    def problems_of_sparsectl(self, words, flags):
        commands = []
        while words and words[0].startswith("-"):  # sparsectl's own
            words = words[2 if words[0] in ("-s", "-o", "--server", "--output", "--timeout") else 1:]
        for word in words:
            if not re.fullmatch(r"[a-z][a-z-]*", word) or len(commands) == 2:
                break
            commands.append(word)
        if commands[:1] == ["help"]:
            commands = commands[1:]
        general = said_to_help(self.sparsectl)
        said = general
        for depth in range(1, len(commands) + 1):
            # A command that there is not has the help of the one above it.
            further = said_to_help(self.sparsectl, *commands[:depth])
            if f"Usage: sparsectl {' '.join(commands[:depth])}" not in further:
                if depth == 1 or "Subcommands:" in said:
                    yield f"sparsectl has no command {' '.join(commands[:depth])}"
                break
            said = further
        for flag in flags:
            if not has_flag(said, flag) and not has_flag(general, flag):
                yield f"sparsectl {' '.join(commands)} has no {flag}"

    @staticmethod
    def problems_of_others(words, flags):
        name = words[0]
        if name == "cmake":
            yield from problems_of_cmake(words)
        if not shutil.which(name) or not flags:
            return
        # Its subcommands are among the words: `docker compose -f FILE up`.
        commands = [word for word in words[1:] if re.fullmatch(r"[a-z]+", word)][:3]
        said = [said_to_help(name, *commands[:depth]) for depth in range(len(commands) + 1)]
        # Docker without Compose says nothing of `docker compose`.
        if name != "cmake" and all(f"{name} {commands[0]}" in text for text in said[1:]):
            yield from (f"{name} {' '.join(commands)} has no {flag}" for flag in flags
                        if not has_flag("\n".join(said), flag))


@functools.cache
def targets():
    """The text that makes the build's targets."""
    folders = ("base", "client", "engine", "kernels", "proto", "server", "tests", "tools")
    return "\n".join(file.read_text() for folder in folders for pattern in ("CMakeLists.txt", "*.cmake")
                     for file in sorted((ROOT / folder).rglob(pattern)))


def is_target(name):
    return re.search(rf"\(\s*{re.escape(name)}\b", targets()) is not None


def problems_of_sources(name, flags):
    """Of a program of the repository, unless it is none."""
    matches = ((re.fullmatch(pattern, name), path) for pattern, path in SOURCES)
    found = next((match.expand(path) for match, path in matches if match), None)
    if found is None or re.search(r"[A-Z]", name):  # tests/KIND stands for several
        return
    if not (ROOT / found).exists() or ("/" not in name and not is_target(name)):
        yield f"there is no {name}"
        return
    code = code_under(found)
    yield from (f"{name} has no {flag}" for flag in flags if not is_flag_of_code(code, flag))


def problems_of_cmake(words):
    """Presets and targets that there are not."""
    presets = json.loads((ROOT / "CMakePresets.json").read_text())
    after = None
    for word in words[1:]:
        if word.startswith("-"):
            after = word
        elif after == "--preset":
            if word not in [preset["name"] for preset in presets["configurePresets"]]:
                yield f"there is no preset {word}"
        elif after == "--target":
            if not is_target(word):
                yield f"there is no target {word}"
