#!/usr/bin/env python3
"""Makes the reference data of tests/text and chat-template/tests.

    pip install sentencepiece transformers jinja2    # made with sentencepiece 0.2, transformers 5.23
    tests/data/text/make.py [sentencepiece] [chat]

sentencepiece.json: a small SentencePiece vocabulary with byte fallback, as in GGUF, and some texts encoded by sentencepiece.
chat.json: chat templates, conversations, and transformers' renderings of them. templates.py has more: those of published model families, and pieces
that try every construct, on one conversation.
"""

import io
import json
import sys
from pathlib import Path

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

import templates

HERE = Path(__file__).parent
TALE = HERE.parents[2] / "assets/tales-22m/golden/heldout_own.txt"

TEXTS = [
    "", " ", "Oliver ran after the kite.", " leading space", "two  spaces   three", "line\nbreaks\n\n\nand\ttabs ", "1234567 and 3.14159",
    "Café naïve — “quoted”", "東京 한국어 Русский", "🦊 fox 👨‍👩‍👧", "!!!???...", "▁ itself", "the the thethe", "<0x41>x",
]


def sentence_piece():
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TALE.read_text().split("\n")), model_writer=model, model_type="bpe", vocab_size=420, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, character_coverage=1.0, minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())

    def kind(i):
        kinds = [(processor.is_unknown, 2), (processor.is_control, 3), (processor.is_unused, 5), (processor.is_byte, 6)]
        return next((number for test, number in kinds if test(i)), 1)

    ids = range(processor.vocab_size())
    return {
        "tokens": [processor.id_to_piece(i) for i in ids],
        "token_types": [kind(i) for i in ids],
        "scores": [processor.get_score(i) for i in ids],
        "bos": processor.bos_id(),
        "eos": processor.eos_id(),
        "vectors": [{"text": text, "ids": processor.encode(text), "decoded": processor.decode(processor.encode(text))} for text in TEXTS],
    }


TEMPLATES = {
    # The documented format of BitNet b1.58 2B4T: "Role: content<|eot_id|>", then "Assistant: ".
    "roles": (
        "{% for message in messages %}{{ message['role'] | capitalize + ': ' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
    ),
    "methods": (
        "{%- set ns = namespace(first=true) -%}\n{{- bos_token }}\n{%- for message in messages %}\n"
        "    {%- if message.role == 'system' and not loop.first %}\n        {{- raise_exception('the system speaks first') }}\n    {%- endif %}\n"
        "    {%- if not message['content'].strip() %}{% continue %}{% endif %}\n"
        "    {{- '' if ns.first else '\\n' }}{{ message['role'].upper() + '|' + message.content.strip() }}{% set ns.first = false %}\n"
        "    {%- if message['content'].startswith('stop') %}{% break %}{% endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{ eos_token ~ '\\nASSISTANT|' }}{% endif %}\n"
    ),
    "blocks": (
        "{% if messages[0]['role'] == 'system' %}\n  {% set system = messages[0]['content'] %}\n  {% set rest = messages[1:] %}\n"
        "{% else %}\n  {% set system = 'none' %}\n  {% set rest = messages %}\n{% endif %}\n<{{ system }}>\n"
        "{% for message in rest %}\n  {{ loop.index0 }}/{{ rest | length }} {{ message['content'].split(' ')[-1] }}\n{% endfor %}\n"
        "{% if tools is defined and tools %}\n{{ add_generation_prompt }}\n{% endif %}\n"
    ),
}

CONVERSATIONS = [
    [],
    [("user", "Where are you going?")],
    [("system", "Be brief & <kind>."), ("user", "  Hello, 'fox'!  "), ("assistant", "Good day."), ("user", "")],
    [("user", "stop here"), ("system", "late")],
    [("user", "Ünïcode — 東京"), ("system", "late")],
]


def render(template, messages, prompt):
    try:
        rendered, _ = render_jinja_template(
            [messages], chat_template=template, add_generation_prompt=prompt, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"
        )
        return {"text": rendered[0]}
    except (TemplateError, TypeError, ZeroDivisionError, ValueError, AttributeError, KeyError) as error:
        return {"error": str(error)}


def chat():
    cases = []
    for name, template in (TEMPLATES | templates.FAMILIES).items():
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            for prompt in [False, True]:
                case = {"template": name, "messages": messages, "add_generation_prompt": prompt}
                cases.append(case | render(template, messages, prompt))
    conversation = [{"role": role, "content": content} for role, content in CONVERSATIONS[2]]
    pieces = [{"template": piece} | render(piece, conversation, True) for piece in templates.pieces()]
    return {"templates": TEMPLATES | templates.FAMILIES, "cases": cases, "messages": conversation, "pieces": pieces}


def main():
    for name, make in {"sentencepiece": sentence_piece, "chat": chat}.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        value = make()
        (HERE / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
