"""Builds the manual as a site: the pages of docs/, the READMEs, and the reference of the interfaces.

build.py ROOT FOLDER [--branch BRANCH] [RUSTDOC]
build.py ROOT FOLDER pages      makes the pages only, without mkdocs

FOLDER/pages gets the pages, and FOLDER/site the site. A link to a file of the sources leads to a copy of the file.
RUSTDOC is a folder with the pages of `cargo doc`. A page that is missing or a link that leads nowhere is an error.

With a branch, the site becomes a folder of that branch of ROOT's repository, named after the library's version: 0.2.
The branch keeps the folders of other versions. Each page then has a menu of versions.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import headers

ROOT, FOLDER = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
PAGES = FOLDER / "pages"
LINK = re.compile(r"(\]\()([^)\s#]+)?(#[^)\s]*)?(\))")
READMES = ["examples/*/README.md", "bindings/python/README.md", "bindings/rust/*/README.md", "tests/*/README.md"]


def places():
    """Where each page of the tree lies on the site."""
    yield ROOT / "README.md", "index.md"
    for name in ("CHANGELOG", "CONTRIBUTING"):
        yield ROOT / f"{name}.md", f"{name.lower()}.md"
    for path in sorted(ROOT.glob("docs/*.md")):
        yield path, path.name
    for path in sorted(ROOT.glob("docs/tutorials/*.md")):
        yield path, "tutorials.md" if path.name == "README.md" else f"tutorials-{path.name}"
    for pattern in READMES:
        for path in sorted(ROOT.glob(pattern)):
            yield path, f"{path.parent.relative_to(ROOT).as_posix().replace('/', '-')}.md"


def relinked(text, path, known):
    """The text with links that lead to the places of the site. Files of the sources are copied."""

    def replace(match):
        target, anchor = match[2], match[3] or ""
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        file = (path.parent / target).resolve()
        if file in known:
            return f"{match[1]}{known[file]}{anchor}{match[4]}"
        if file.is_dir():
            readme = file / "README.md"
            return f"{match[1]}{known[readme]}{match[4]}" if readme in known else f"{match[1]}#{match[4]}"
        if not file.is_file():
            sys.exit(f"{path}: there is no {target}")
        # As text, which a browser shows. Pictures keep their names.
        name = file.relative_to(ROOT).as_posix()
        to = f"files/{name}" if file.suffix in (".svg", ".png") else f"files/{name}.txt"
        (PAGES / to).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, PAGES / to)
        return f"{match[1]}{to}{match[4]}"

    parts = re.split(r"(^```.*?^```$|`[^`\n]*`)", text, flags=re.S | re.M)
    return "".join(part if i % 2 else LINK.sub(replace, part) for i, part in enumerate(parts))


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    (PAGES / "reference").mkdir(parents=True)
    known = dict(places())
    for path, place in known.items():
        (PAGES / place).write_text(relinked(path.read_text(), path, known))
    for header in headers.HEADERS:
        (PAGES / f"reference/{header}.md").write_text(headers.page(ROOT, header))
    (PAGES / "reference/python.md").write_text("# Python: libstagehand\n\n::: libstagehand\n")
    (PAGES / "reference/torch.md").write_text("# Python: libstagehand.torch\n\n::: libstagehand.torch\n")
    menu = (ROOT / "packaging/site/mkdocs.yml").read_text()
    for page in PAGES.rglob("*.md"):
        name = page.relative_to(PAGES).as_posix()
        if not name.startswith(("bindings-", "tests-")) and f"- {name}\n" not in menu:
            sys.exit(f"packaging/site/mkdocs.yml: the menu lacks {name}")
    if sys.argv[3:] == ["pages"]:
        print(f"{len(list(PAGES.rglob('*.md')))} pages")
        return
    branch, rest = None, sys.argv[3:]
    if rest[:1] == ["--branch"]:
        branch, rest = rest[1], rest[2:]
    for rustdoc in rest:
        shutil.copytree(rustdoc, PAGES / "rust-reference")
        with open(PAGES / "rust.md", "a") as page:
            page.write("\n## Reference\n\n")
            for crate, title in (("libstagehand", "libstagehand"), ("libstagehand_sys", "libstagehand-sys")):
                page.write(f"- [{title}](rust-reference/{crate}/index.html)\n")
    build(branch)


def version():
    text = (ROOT / "include/stagehand/version.h").read_text()
    return re.findall(r"SH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)


def build(branch):
    """Runs mkdocs, by mike if the site becomes a part of a branch."""
    config = FOLDER / "mkdocs.yml"
    shutil.copytree(ROOT / "packaging/site/theme", FOLDER / "theme")
    text = (ROOT / "packaging/site/mkdocs.yml").read_text()
    commands = [["mkdocs", "build", "--strict", "--quiet", "-f", config]]
    if branch:
        text += "extra:\n  version: {provider: mike, default: latest}\n"
        of_mike = ["--config-file", config, "--branch", branch]
        numbers = version()
        title = ".".join(numbers)
        commands += [
            ["mike", "deploy", *of_mike, "--update-aliases", "--title", title, ".".join(numbers[:2]), "latest"],
            ["mike", "set-default", *of_mike, "latest"],
        ]
    config.write_text(text)
    tools = os.path.dirname(sys.executable)  # mike calls mkdocs by its name
    environment = dict(
        os.environ,
        PATH=f"{tools}:{os.environ['PATH']}",
        STAGEHAND_PYTHON=str(ROOT / "bindings/python"),
        NO_MKDOCS_2_WARNING="1",
    )
    for tool, *words in commands:
        done = subprocess.run([os.path.join(tools, tool), *words], env=environment, cwd=ROOT)
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
