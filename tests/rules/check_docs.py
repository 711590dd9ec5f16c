#!/usr/bin/env python3
"""Checks what the documents name: relative links and their anchors, back-ticked paths, C++ names, command-line flags."""
import itertools
import pathlib
import re
import sys

SKIPPED = ("build", "archipelago-run", "runs", "data", ".git", ".cache")
# Folders whose paths are named in back-ticks. What a run makes (logs/, model/, ...) is not here.
ROOTS = ("bench", "cli", "cmake", "common", "docs", "examples", "learner", "operator", "outer-optimizer", "replay", "simulator", "tests",
         "third_party", ".ci")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`((?:[^`\n]|\n(?!\n))+)`")  # a span may go on in the next line, not in the next paragraph
PATH = re.compile(r"^[\w.\-+]+(/[\w.\-+*{},]+)+/?$")
NAME = re.compile(r"^[A-Za-z_]\w*(::[A-Za-z_]\w*)+$")  # Class::function
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
# Flags of other programs that the documents mention.
FOREIGN = {"--preset", "--test-dir", "--list-tests", "--version"}


def prose(text):
    """The text without fenced blocks, lines kept."""
    out, fence = [], False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fence = not fence
            out.append("")
        else:
            out.append("" if fence else line)
    return out


def anchors(text):
    found = set()
    for line in prose(text):
        heading = re.match(r"#+\s+(.*?)\s*$", line)
        if heading:
            plain = re.sub(r"[^\w\- ]", "", re.sub(r"`", "", heading.group(1)).lower())
            found.add(plain.replace(" ", "-"))
    return found


def expand(word):
    """a/{b,c}.h -> a/b.h, a/c.h"""
    parts = re.split(r"\{([^{}]*)\}", word)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def check_link(root, document, target):
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    file = document if not path else (document.parent / path)
    if not file.exists():
        return f"link to {target}, which does not exist"
    if anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
        return f"link to {target}: no such heading"
    return None


def check_word(root, word):
    if not PATH.match(word) or word.split("/")[0] not in ROOTS:
        return None
    for name in expand(word):
        exists = any(root.glob(name.rstrip("/"))) if "*" in name else (root / name).exists()
        if not exists:
            return f"path {name}, which does not exist"
    return None


def check_name(word, names):
    if not NAME.match(word) or word.startswith("std::"):
        return None
    missing = [part for part in word.split("::") if part not in names]
    return f"name {word}: no {missing[0]} in the code" if missing else None


def check_document(root, document, flags, names):
    text, problems = "\n".join(prose(document.read_text(encoding="utf-8"))), []

    def report(match, found):
        line = text.count("\n", 0, match.start()) + 1
        problems.extend(f"{document.relative_to(root)}:{line}: {problem}" for problem in found if problem)

    for match in LINK.finditer(text):
        report(match, [check_link(root, document, match.group(1))])
    for match in CODE.finditer(text):
        code = match.group(1)
        report(match, [check_word(root, word) for word in code.split()])
        report(match, [check_name(word, names) for word in code.split()])
        report(match, [f"flag {flag}, which no program has" for flag in FLAG.findall(code) if flag not in flags])
    return problems


def sources(root, suffixes):
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(SKIPPED) and path.suffix in suffixes and path.is_file():
            yield path


def known_flags(root):
    """Whole flags at the begin of a string literal of a program, and whatever ./dev says."""
    script = (root / "dev").read_text(encoding="utf-8") if (root / "dev").exists() else ""
    flags = set(re.findall(r"[\s\"\[](--[a-z][a-z-]*[a-z])", script))
    for path in sources(root, (".cc", ".py")):
        flags.update(re.findall(r'"(--[a-z][a-z-]*[a-z])[",]', path.read_text(encoding="utf-8", errors="replace")))
    return flags | FOREIGN


def known_names(root):
    names = set()
    for path in sources(root, (".cc", ".h")):
        names.update(re.findall(r"\b[A-Za-z_]\w*\b", path.read_text(encoding="utf-8", errors="replace")))
    return names


def check_tree(root):
    flags, names = known_flags(root), known_names(root)
    return [p for document in sources(root, (".md",)) for p in check_document(root, document, flags, names)]


def self_test():
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs").mkdir()
        (root / "cli").mkdir()
        (root / "cli/main.cc").write_text('app.add_option("--output", x);\n')
        good = "# A b\n[x](#a-b) `cli/main.cc` `cli/main.{cc}` `--output DIR` `model/`\n```\n`cli/none.cc`\n```\n"
        (root / "docs/a.md").write_text(good)
        assert not check_tree(root), check_tree(root)
        for bad in ("[x](gone.md)", "[x](#gone)", "`cli/gone.cc`", "`cli/*.py`", "`--gone`", "`a\nb` `--gone`", "`app::gone`"):
            (root / "docs/a.md").write_text(bad + "\n")
            assert len(check_tree(root)) == 1, bad
    print("the checker finds what it should")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    found = check_tree(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(found) or "all that the documents name exists")
    sys.exit(1 if found else 0)
