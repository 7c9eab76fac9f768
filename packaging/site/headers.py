"""Writes a page of reference for each public header in C, from the comments in it."""

import re

HEADERS = [
    *("base", "device", "host", "source", "runtime", "contents", "parts", "streaming", "members", "residency"),
    *("graph", "spill", "activations", "occupancy", "helpers", "control", "telemetry", "backend"),
]
# A comment and the declaration after it: a function, a struct, a list of constants, or another type.
DECLARED = re.compile(
    r"^/\*\*(?P<comment>(?:(?!\*/).)*)\*/\n"
    r"(?P<code>SH_API [^;]*;|typedef (?:struct|enum)[^;{]*\{.*?^\}[^;]*;|typedef [^;]*;|(?:#define [^\n]*\n)+)",
    flags=re.S | re.M,
)


def plain(comment):
    return "\n".join(line.strip().removeprefix("*").strip() for line in comment.splitlines()).strip()


def escaped(text):
    """Markdown would take these for tags and emphasis."""
    return re.sub(r"<(?=[A-Za-z/])", r"&lt;", re.sub(r"\s+", " ", text)).replace("*", r"\*").strip()


def name_of(code):
    for pattern in (r"SH_API [^(]*?\b(sh_\w+)\(", r"\}\s*(\w+);", r"#define (\w+)", r"\(\*(\w+)\)", r"(\w+);"):
        if found := re.search(pattern, code):
            return found[1]
    raise ValueError(f"a declaration without a name: {code}")


def entry(comment, code):
    parts = re.split(r"(?=@(?:param|retval|return|blocks|threads)\b|\\since)", plain(comment))
    lines = [f"### `{name_of(code)}`", "", escaped(parts[0]), "", "```c", code.strip(), "```", ""]
    tags = [re.match(r"[@\\](\w+)\s*(.*)", part, re.S).groups() for part in parts[1:]]
    for title, tag in (("Parameter", "param"), ("Status", "retval")):
        rows = [text.split(None, 1) for known, text in tags if known == tag]
        if rows:
            lines += [f"| {title} | |", "|---|---|"]
            lines += [f"| `{row[0]}` | {escaped(' '.join(row[1:])).replace('|', chr(92) + '|')} |" for row in rows] + [
                ""
            ]
    words = {"return": "Returns", "blocks": "Blocks:", "threads": "Threads:", "since": "Since"}
    lines += [f"- {words[tag]} {escaped(text)}" for tag, text in tags if tag in words]
    return "\n".join(lines) + "\n"


def page(root, header):
    text = (root / f"include/stagehand/{header}.h").read_text()
    found = [entry(match["comment"], match["code"]) for match in DECLARED.finditer(text)]
    declared = set(re.findall(r"SH_API [^;(]*?\b(sh_\w+)\(", text))
    told = set(re.findall(r"^### `(\w+)`", "\n".join(found), flags=re.M))
    if missing := declared - told:
        raise ValueError(f"{header}.h: no comment is before {sorted(missing)}")
    first = re.match(r"/\*(.*?)\*/", text, flags=re.S)
    about = escaped(plain(first[1])) if first else ""
    return f"# stagehand/{header}.h\n\n{about}\n\n" + "\n".join(found)
