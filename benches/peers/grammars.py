#!/usr/bin/env python3
"""Times masks of tokens by llguidance, which this project uses, and by outlines-core: one vocabulary, the same JSON schemas.

    python3 -m venv target/peers && target/peers/bin/pip install llguidance==1.9.1 outlines-core==0.2.14 numpy
    target/peers/bin/python benches/peers/grammars.py [TOKENS..]

Each row is a process of its own: processor time of one thread, the growth of its memory, and 20 random texts of at most 120 tokens. Tokens are made
from a seed: bytes, numbers, JSON's marks, and words by the frequency of letters.
"""

import json
import random
import resource
import subprocess
import sys
import time

import numpy as np

LETTERS = "etaoinshrdlucmfwypvbgkqjxz"
WEIGHTS = [12.7, 9.1, 8.2, 7.5, 7, 6.7, 6.3, 6.1, 6, 4.3, 4, 2.8, 2.8, 2.4, 2.2, 2.4, 2, 1.9, 1, 1.5, 2, 0.8, 0.1, 0.15, 0.15, 0.07]
MARKS = ['"', '":', '": "', '",', '","', '", "', '{"', "}", "},", "}]", "[", "]", " {", '[{"', "true", "false", "null", "-", "0.", ": ", ", "]
LINE = {
    "type": "object",
    "properties": {
        "sku": {"type": "string", "maxLength": 20},
        "count": {"type": "integer"},
        "state": {"enum": ["new", "paid", "sent", "lost"]},
    },
    "required": ["sku", "count", "state"],
    "additionalProperties": False,
}
SCHEMAS = {
    "a choice of three": {"enum": ["yes", "no", "maybe"]},
    "an object of three": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
    "a list of up to ten objects": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{6}$"},
            "lines": {"type": "array", "minItems": 1, "maxItems": 10, "items": LINE},
        },
        "required": ["id", "lines"],
        "additionalProperties": False,
    },
    "any object": {"type": "object"},
}


def vocabulary(size):
    rng = random.Random(1)
    tokens = [bytes([byte]) for byte in range(256)] + [mark.encode() for mark in MARKS if len(mark) > 1]
    tokens += [str(number).encode() for number in range(10, 1000)]
    seen = set(tokens)
    while len(tokens) < size - 1:
        word = "".join(rng.choices(LETTERS, WEIGHTS, k=min(12, 2 + int(rng.expovariate(0.3)))))
        word = (rng.choice(["", " ", " "]) + (word.capitalize() if rng.random() < 0.2 else word)).encode()
        if word not in seen:
            seen.add(word)
            tokens.append(word)
    return tokens


class Llguidance:
    def __init__(self, tokens):
        import llguidance
        import llguidance.numpy

        class Tokens:
            eos_token_id, bos_token_id, special_token_ids = len(tokens), None, [len(tokens)]

            def __init__(self):
                self.tokens = tokens + [b"\xff<eos>"]

            def __call__(self, text):
                return list(text if isinstance(text, bytes) else text.encode())

        self.module, self.tokens = llguidance, llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokens()))
        self.bits = llguidance.numpy.allocate_token_bitmask(1, len(tokens) + 1)

    def compile(self, schema):
        self.grammar = self.module.LLMatcher.grammar_from_json_schema(schema)
        self.begin()

    def begin(self):
        self.matcher = self.module.LLMatcher(self.tokens, self.grammar)

    def mask(self):
        self.module.numpy.fill_next_token_bitmask(self.matcher, self.bits, 0)
        return self.bits

    def push(self, token):
        self.matcher.consume_token(token)
        return not self.matcher.is_stopped()


class Outlines:
    def __init__(self, tokens):
        import outlines_core

        self.module = outlines_core
        self.tokens = outlines_core.Vocabulary(len(tokens), {token: [at] for at, token in enumerate(tokens)})
        self.bits = np.zeros((len(tokens) + 32) // 32, dtype=np.int32)

    def compile(self, schema):
        self.index = self.module.Index(self.module.json_schema.build_regex_from_schema(schema), self.tokens)
        self.begin()

    def begin(self):
        self.guide = self.module.Guide(self.index)

    def mask(self):
        self.guide.write_mask_into(self.bits.ctypes.data, self.bits.size, self.bits.itemsize)
        return self.bits

    def push(self, token):
        self.guide.advance(token, False)
        return not self.guide.is_finished()


def timed(call, *arguments):
    start = time.process_time()
    result = call(*arguments)
    return result, time.process_time() - start


def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(kind, size, name):
    tokens, rng, before = vocabulary(size), random.Random(7), memory()
    engine, loading = timed(kind, tokens)
    _, compiling = timed(engine.compile, json.dumps(SCHEMAS[name]))
    masks, pushes = [], []
    for _ in range(20):
        engine.begin()
        for _ in range(120):
            bits, seconds = timed(engine.mask)
            masks.append(seconds)
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
            allowed = allowed[allowed <= len(tokens)]
            token = int(allowed[rng.randrange(len(allowed))])
            if token == len(tokens):
                break
            goes_on, seconds = timed(engine.push, token)
            pushes.append(seconds)
            if not goes_on:
                break
    each = (sum(masks) + sum(pushes)) / len(masks)
    print(
        f"| {name} | {size} | {kind.__name__} | {loading:.2f} | {compiling * 1e3:.1f} | {each * 1e6:.0f} | {max(masks) * 1e6:.0f} | {memory() - before:.0f} |"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure({"Llguidance": Llguidance, "Outlines": Outlines}[sys.argv[2]], int(sys.argv[3]), sys.argv[4])
        sys.exit()
    print("| schema | tokens | crate | vocabulary, s | grammar, ms | a token, µs | worst, µs | memory, MB |\n| --- | --: | --- | --: | --: | --: | --: | --: |", flush=True)
    for size in [int(size) for size in sys.argv[1:]] or [32000, 128000]:
        for name in SCHEMAS:
            for kind in (Llguidance, Outlines):
                row = [sys.executable, __file__, "--one", kind.__name__, str(size), name]
                if subprocess.run(row, timeout=600).returncode != 0:
                    print(f"| {name} | {size} | {kind.__name__} | fails | | | | |", flush=True)
