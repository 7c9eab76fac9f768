"""The dependencies of the sources with their licenses, from dependencies.json. A dependency that a build file names and
that list does not is an error.
"""

import json
import os
import pathlib
import re
import tomllib

LIST = pathlib.Path(__file__).with_name("dependencies.json")
# Part of the compiler or of this project.
NO_DEPENDENCY = {"threads", "stagehand"}


def listed():
    """Components as dicts, and the licenses of crates by their names."""
    told = json.loads(LIST.read_text())
    return told["components"], {name: license for license, names in told["cargo"].items() for name in names}


def crates(root):
    """Packages of Cargo.lock that come from a registry, with their scopes."""
    packages = tomllib.loads((root / "bindings/rust/Cargo.lock").read_text())["package"]
    needs = {one["name"]: [name.split()[0] for name in one.get("dependencies", [])] for one in packages}

    def closure(*names):
        found, open_names = set(), list(names)
        while open_names:
            if (name := open_names.pop()) not in found:
                found.add(name)
                open_names += needs.get(name, [])
        return found

    required, optional = closure("thiserror", "pkg-config"), closure("bindgen")
    for one in packages:
        if "source" in one:
            name = one["name"]
            scope = "required" if name in required else "optional" if name in optional else "excluded"
            yield name, one["version"], scope


def named(root):
    """The keys of all dependencies that build files name, with the files."""
    for folder, folders, files in os.walk(root):
        folders[:] = [one for one in folders if not one.startswith(("build", ".")) and one != "vendor"]
        if "meson.build" in files:
            path = pathlib.Path(folder, "meson.build")
            for name in re.findall(r"\bdependency\('([^']+)'", path.read_text()):
                yield f"meson:{name}", path.relative_to(root)
    project = tomllib.loads((root / "pyproject.toml").read_text())
    wanted = project["build-system"]["requires"] + project["project"].get("dependencies", [])
    for extra in project["project"].get("optional-dependencies", {}).values():
        wanted += extra
    for one in wanted:
        name = re.match(r"[\w.-]+", one)[0]
        yield f"python:{name}", "pyproject.toml"
    for name, _, _ in crates(root):
        yield f"cargo:{name}", "bindings/rust/Cargo.lock"


def unlisted(root):
    """A line for each dependency without an entry in the list."""
    components, licenses = listed()
    known = {one["key"] for one in components} | {f"cargo:{name}" for name in licenses}
    known |= {f"meson:{name}" for name in NO_DEPENDENCY}
    for key, place in sorted({(key, str(place)) for key, place in named(root)}):
        if key not in known:
            yield f"{place} names {key}, which {LIST.parent.name}/{LIST.name} has no license for"
