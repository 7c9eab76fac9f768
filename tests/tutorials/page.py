"""Runs a page of docs/tutorials from top to bottom, as a reader does, and compares what the page shows.

page.py PAGE BUILD [PYTHON SITE]

A block with `title="NAME"` is written to the file NAME. A block `sh` is run in the same folder, with the variables that
the block before has left. A block `text` right after it is what it prints. PYTHON is the reader's `python`, and SITE a
folder with the Python package.

In a block `text` a word in angle brackets stands for a figure that differs (FIGURES), and a line `…` for any lines.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETUP = ROOT / "docs/tutorials/README.md"
FENCE = re.compile(r"^```(\w+)?(?: title=\"([\w.]+)\")?\n(.*?)^```\n", flags=re.S | re.M)
# Languages of programs that are files of the reader, and those that only this page's reader sees.
PROGRAMS, SHOWN = {"c", "python"}, {"cuda", "text", None}
FIGURES = {
    "address": r"0x[0-9a-f]+",
    "number": r"[\d,.]+",
    "size": r"[\d.]+ (?:B|KiB|MiB|GiB)",
    "speed": r"[\d.]+ [kMGT]?B/s",
    "time": r"[\d.]+ (?:ns|µs|us|ms|s)",
    "word": r"\S+",
    "words": r"[\w ]+",
    "spaces": " *",
    "mark": r"(?: \*)?",
}


class Wrong(Exception):
    pass


def blocks(path):
    """Language, title, text and line of each block. A block that nothing would run is an error."""
    text = path.read_text()
    found = []
    for match in FENCE.finditer(text):
        language, title, body = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        if language in PROGRAMS and not title:
            raise Wrong(f"{path}:{line}: a block of {language} has no title, so that no test builds it")
        if language not in PROGRAMS | SHOWN | {"sh"}:
            raise Wrong(f"{path}:{line}: the language {language} is not known")
        if language == "text" and (not found or found[-1][0] != "sh"):
            raise Wrong(f"{path}:{line}: a block of text is not right after a block of sh")
        found.append((language, title, body, line))
    if len(re.findall(r"^\s*```", text, flags=re.M)) != 2 * len(found):
        raise Wrong(f"{path}: a fence is not understood")
    return found


def pattern(line):
    parts = re.split(r"<(\w+)>", line)
    for name in parts[1::2]:
        if name not in FIGURES:
            raise Wrong(f"<{name}> is not one of {', '.join(FIGURES)}")
    # Columns are as wide as their figures.
    texts = [re.sub(r"(?:\\ ){2,}", " +", re.escape(text)) for text in parts[0::2]]
    figures = [FIGURES[name] for name in parts[1::2]] + [""]
    return "".join(text + figure for text, figure in zip(texts, figures))


def compare(where, wanted, printed):
    """Each line of the page is the next line that is printed, except that a line `…` stands for any lines."""
    lines, skipping = printed.splitlines(), False
    for line in wanted.splitlines():
        if line == "…":
            skipping = True
            continue
        while lines and skipping and not re.fullmatch(pattern(line), lines[0].rstrip()):
            lines.pop(0)
        if not lines or not re.fullmatch(pattern(line), lines[0].rstrip()):
            raise Wrong(f"{where}: the page shows\n  {line}\nand there is\n  {lines[0] if lines else 'no more'}")
        lines.pop(0)
        skipping = False
    if lines and not skipping:
        raise Wrong(f"{where}: the page does not show\n  {lines[0]}")


def environment(work, build, python, site):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("STAGEHAND_", "PYTHON"))}
    variables |= {"LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    if python:
        (work / "bin").mkdir()
        (work / "bin/python").write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
        (work / "bin/python").chmod(0o755)
        variables |= {"PATH": f"{work / 'bin'}:{variables['PATH']}", "PYTHONPATH": str(site)}
    script = "".join(body for language, _, body, _ in blocks(SETUP) if language == "sh")
    return run(script.replace("$PWD/build", str(build)), ROOT, work, variables)[1]


def run(script, folder, work, variables):
    """What the script prints, and the variables that it leaves. A reader sees standard error too."""
    left = work / "variables"
    done = subprocess.run(
        ["bash", "-c", f'set -euo pipefail\n{script}\nenv -0 >"{left}"\n'],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise Wrong(f"exit status {done.returncode}\n{done.stdout}")
    return done.stdout, dict(one.split("=", 1) for one in left.read_text().split("\0") if one)


def follow(path, build, python=None, site=None):
    """Follows the page in an empty folder. Returns how many blocks it has run."""
    count = 0
    found = blocks(path)
    with tempfile.TemporaryDirectory(prefix="stagehand-tutorial-") as name:
        work = pathlib.Path(name)
        folder = work / "reader"
        folder.mkdir()
        variables = environment(work, build, python, site)
        for index, (language, title, body, line) in enumerate(found):
            if title:
                (folder / title).write_text(body)
            elif language == "sh":
                try:
                    printed, variables = run(body, folder, work, variables)
                except Wrong as error:
                    raise Wrong(f"{path}:{line}: {error}") from None
                count += 1
                after = found[index + 1] if index + 1 < len(found) else (None,)
                if after[0] == "text":
                    compare(f"{path}:{after[3]}", after[2], printed)
    if count == 0:
        raise Wrong(f"{path}: there is nothing to run")
    return count


def main():
    try:
        print(f"{follow(pathlib.Path(sys.argv[1]), *sys.argv[2:])} blocks were run")
    except Wrong as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
