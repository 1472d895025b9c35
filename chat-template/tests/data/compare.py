#!/usr/bin/env python3
"""Compares the renderings of chat templates with those of Jinja2 under the settings of transformers; scripts/chat-template-check runs it.

    compare.py RENDER [--write] [FOLDER ..]

RENDER is the example `render` of this package. Each file FOLDER/*.jinja is rendered with each conversation of conversations.json, at a fixed time.
A template of tokenizer_config.json is a file of its own first. Without FOLDER: the folder templates, and each line of pieces.txt. --write also
writes goldens.json, which the tests read. A cell of the table is `=` for equal output, `-` where both refuse, `DIFFERS`, `REFUSED` where only this
crate refuses, `accepted` where only Jinja refuses. The status is 1 if any cell is in capitals.
"""

import datetime
import json
import subprocess
import sys
from pathlib import Path

from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
NOW = datetime.datetime(2026, 7, 4, 9, 5, 3)


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = FixedTime


def reference(template, context):
    try:
        return {"text": chat_template_utils._compile_jinja_template(template).render(**context)}
    except Exception as error:  # a template may fail in any way that Python code can
        return {"error": f"{type(error).__name__}: {error}"}


def rendered(program, cases):
    request = {"now": NOW.isoformat(), "cases": [{"template": template, "context": context} for template, context in cases]}
    done = subprocess.run([program], input=json.dumps(request), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def verdict(expected, found):
    if "text" in expected:
        return "REFUSED" if "error" in found else "=" if expected == found else "DIFFERS"
    return "-" if "error" in found else "accepted"


def report(name, expected, found):
    """What a person needs to see of a difference."""
    if "error" in found:
        return f"  {name}: {found['error']}"
    if "error" in expected:
        return f"  {name}: Jinja refuses: {expected['error'][:100]}; here: {found['text'][:60]!r}"
    a, b = expected["text"], found["text"]
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    begin = max(at - 20, 0)
    return f"  {name}: at {at}, Jinja: {a[begin : at + 40]!r}; here: {b[begin : at + 40]!r}"


def main():
    program, *arguments = sys.argv[1:]
    write = "--write" in arguments
    folders = [Path(argument) for argument in arguments if not argument.startswith("-")]
    conversations = json.loads((HERE / "conversations.json").read_text())
    files = sorted(file for folder in folders or [HERE / "templates"] for file in folder.glob("*.jinja"))
    templates = {file.stem: file.read_text() for file in files}
    names = list(conversations)
    cases = [(template, conversations[name]) for template in templates.values() for name in names]
    pieces = [] if folders else (HERE / "pieces.txt").read_text().rstrip("\n").split("\n")
    cases += [(piece, conversations["plain"]) for piece in pieces]
    expected = [reference(*case) for case in cases]
    found = rendered(program, cases)
    verdicts = [verdict(*pair) for pair in zip(expected, found)]

    width = max(map(len, templates), default=8)
    print(f"{'template':{width}} " + " ".join(f"{name:>9}" for name in names))
    details = []
    for i, template in enumerate(templates):
        row = range(i * len(names), (i + 1) * len(names))
        print(f"{template:{width}} " + " ".join(f"{verdicts[at]:>9}" for at in row))
        details += [report(f"{template}, {names[at - row.start]}", expected[at], found[at]) for at in row if verdicts[at] not in "=-"]
    for at in range(len(templates) * len(names), len(cases)):
        if verdicts[at] not in "=-":
            details.append(report(f"{verdicts[at]} {cases[at][0]}", expected[at], found[at]))
    print("\n".join(details))
    counts = {kind: verdicts.count(kind) for kind in ["=", "-", "DIFFERS", "REFUSED", "accepted"]}
    print(f"{len(templates)} templates, {len(names)} conversations, {len(pieces)} pieces: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
    if write:
        results = iter({"text": it["text"]} if "text" in it else {"refused": True} for it in expected)
        goldens = {
            "now": NOW.isoformat(),
            "templates": {template: {name: next(results) for name in names} for template in templates},
            "pieces": [next(results) for _ in pieces],
        }
        (HERE / "goldens.json").write_text(json.dumps(goldens, ensure_ascii=False, indent=0) + "\n")
    sys.exit(1 if counts["DIFFERS"] + counts["REFUSED"] else 0)


if __name__ == "__main__":
    main()
