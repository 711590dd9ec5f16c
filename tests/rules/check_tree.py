#!/usr/bin/env python3
"""Checks the tree's own rules (docs/architecture.md): includes between rooms, file and function sizes."""
import pathlib
import re
import sys

MAX_FILE, MAX_FUNCTION = 600, 60

# room -> rooms whose headers it may include (itself always).
COMMON = {"base", "codec", "diloco", "wire", "config", "http"}
ALLOWED = {
    "common/base": set(),
    "common/codec": {"common/base"},
    "common/diloco": {"common/base"},
    "common/wire": {"common/base", "common/codec", "common/diloco"},
    "common/http": {"common/base"},
    "common/config": {"common/base", "common/diloco"},
    "simulator": {"common/base", "common/diloco", "common/config"},
    "outer-optimizer": {"common/" + r for r in COMMON},
    "learner": {"common/" + r for r in COMMON},
    "replay": {"learner", "outer-optimizer"} | {"common/" + r for r in COMMON - {"http"}},
    "operator": {"common/base", "common/config", "common/http", "common/wire", "common/diloco"},
    "cli": {"operator", "simulator"} | {"common/" + r for r in COMMON},
}
# operator/: api <- plan <- reconcile -> cluster; local -> cluster; plan includes neither cluster nor http.
OPERATOR = {
    "api": {"common/base", "common/config", "common/wire", "common/diloco"},
    "plan": {"api", "common/base", "common/config", "common/wire", "common/diloco"},
    "cluster": {"api", "common/base"},
    "runtime": {"api", "plan", "cluster", "reconcile", "common/base", "common/config", "common/http", "common/wire", "common/diloco"},
    "reconcile": {"api", "plan", "cluster", "common/base", "common/config", "common/wire", "common/diloco"},
    "kube": {"api", "cluster", "common/base", "common/http", "common/config"},
    "app": {"api", "plan", "cluster", "kube", "runtime", "reconcile", "common/base", "common/config", "common/http", "common/wire", "common/diloco"},
    "local": {"api", "plan", "cluster", "runtime", "reconcile", "common/base", "common/config", "common/http", "common/wire", "common/diloco"},
}
# A third-party header and the only rooms that may include it.
GUARDED = {
    "httplib.h": {"common/http"},
    "yaml-cpp/": {"common/config"},
    "torch/": {"learner"},
    "ATen/": {"learner"},
    "c10/": {"learner"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')


def room_of(path):
    parts = path.split("/")
    if parts[0] == "common" and len(parts) > 2:
        return "common/" + parts[1]
    return parts[0]


def check_includes(path, text):
    room, problems = room_of(path), []
    if room not in ALLOWED:
        return problems
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(2)
        for header, rooms in GUARDED.items():
            if target.startswith(header) and room not in rooms:
                problems.append(f"{path}:{number}: {target} may be included in {', '.join(sorted(rooms))} only")
        if match.group(1) == "<":
            continue
        other = room_of(target)
        if room == "operator" and path.count("/") >= 2:
            inner = path.split("/")[1]
            into = target.split("/")[1] if other == "operator" else other
            if into != inner and into not in OPERATOR.get(inner, set()):
                problems.append(f"{path}:{number}: operator/{inner} may not include {target}")
        elif other != room and other not in ALLOWED[room]:
            problems.append(f"{path}:{number}: {room} may not include {target}")
    return problems


def strip(text):
    """Blanks comments, strings and preprocessor lines so that braces can be counted."""
    text = re.sub(r'R"(\w*)\((?:.|\n)*?\)\1"', lambda m: "\n" * m.group(0).count("\n"), text)
    # One pass, so that a comment mark inside a string and a quote inside a comment both stay what they are.
    token = re.compile(r"""//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""")
    text = token.sub(lambda m: "\n" * m.group(0).count("\n") if m.group(0)[0] == "/" else '""', text)
    return re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.M)


def check_functions(path, text):
    """A function body is a brace that follows ')' (and qualifiers) outside any other function."""
    problems, depth, start, body_depth = [], 0, 0, None
    clean = strip(text)
    last_break = 0
    line = 1
    for i, c in enumerate(clean):
        if c == "\n":
            line += 1
        elif c == "{":
            head = clean[last_break:i].strip()
            is_function = re.search(r'\)\s*(const|noexcept|override|final|mutable|->\s*[\w:<>,\s*&]+|:\s*[^;]*)*\s*$', head)
            if body_depth is None and is_function and not re.match(r'(namespace|class|struct|enum|union)\b', head):
                # TEST_CASE bodies hold tables; the rule is about functions.
                body_depth, start = depth, line
                is_test = re.search(r'\b(TEST_CASE|TEMPLATE_TEST_CASE|SCENARIO|METHOD_TEST_CASE)\b', head) is not None
            depth += 1
            last_break = i + 1
        elif c == "}":
            depth -= 1
            last_break = i + 1
            if body_depth is not None and depth == body_depth:
                if line - start + 1 > MAX_FUNCTION and not is_test:
                    problems.append(f"{path}:{start}: function of {line - start + 1} lines, allowed {MAX_FUNCTION}")
                body_depth = None
        elif c == ";" and body_depth is None:
            last_break = i + 1
    return problems


TEST_NAME = re.compile(r'\b(?:TEMPLATE_)?TEST_CASE\(\s*"((?:[^"\\]|\\.)*)"')


def check_test_names(path, text):
    """ctest gets names as a list and as an argument: one with ';' becomes two that match nothing and pass, one with '-' a flag."""
    bad = [name for name in TEST_NAME.findall(text) if ";" in name or name.startswith("-")]
    return [f"{path}: test name {name!r}: no ';' and no '-' at its start" for name in bad]


def check_tree(root):
    problems = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.startswith(("build", ".git/", "archipelago-run")) or path.suffix not in (".cc", ".h") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        lines = text.count("\n")
        if lines > MAX_FILE:
            problems.append(f"{name}: {lines} lines, allowed {MAX_FILE}")
        problems += check_includes(name, text) + check_functions(name, text) + check_test_names(name, text)
    return problems


def self_test():
    bad = "int f() {\n" + "  g();\n" * 70 + "}\n"
    assert check_functions("a.cc", bad), "a long function passed"
    assert not check_functions("a.cc", "int f() {\n  g();\n}\n" * 100)
    assert check_includes("common/base/a.h", '#include "common/wire/frame.h"\n'), "base may include nothing of ours"
    assert check_includes("operator/plan/a.cc", '#include "operator/cluster/cluster.h"\n')
    assert check_includes("learner/a.cc", '#include "outer-optimizer/store/store.h"\n')
    assert check_includes("operator/api/a.cc", "#include <httplib.h>\n")
    assert not check_includes("operator/reconcile/a.cc", '#include "operator/cluster/cluster.h"\n')
    assert check_test_names("a.cc", 'TEST_CASE("one; two") {') and check_test_names("a.cc", 'TEST_CASE("--flag") {')
    assert not check_test_names("a.cc", 'TEST_CASE("one, two-three (A-07)") { int a; }')
    print("the checker finds what it should")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    found = check_tree(pathlib.Path(sys.argv[1]))
    print("\n".join(found) or "all rules hold")
    sys.exit(1 if found else 0)
