"""Chat templates for make.py: those of published model families as they are used, and pieces that try every construct."""

# Families whose templates differ in what they use of Jinja.
FAMILIES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
    "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}",
    "llama3.1": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message + builtin tools #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- tool_call.arguments | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "qwen3": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
{%- else %}
    {%- if messages and messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "gemma": "{{ bos_token }}{% if messages and messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{'<start_of_turn>model\n'}}{% endif %}",
    "mistral": """{%- if messages and messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
{{- user_messages | length }}
""",
    "zephyr": "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n"
    "{% endif %}\n{% endfor %}",
    "falcon3": "{%- if tools %}{{- '<|system|>\\n' }}{%- endif %}{%- for message in messages %}{% if message['role'] == 'system' %}"
    "{{ '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}"
    "{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}"
    "{% else %}{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
    "smol": """{# ───── defaults ───── #}
{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{# ───── reasoning mode ───── #}
{%- if enable_thinking -%}
  {%- set reasoning_mode = "/think" -%}
{%- else -%}
  {%- set reasoning_mode = "/no_think" -%}
{%- endif -%}
{{- "<|im_start|>system\\n" -}}
{%- if messages and messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}
    {%- set reasoning_mode = "/no_think" -%}
  {%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "Reasoning Mode: " + reasoning_mode + "\\n\\n" -}}
{%- if custom_instructions -%}{{- custom_instructions + "\\n\\n" -}}{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {% endgeneration %}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\\n" }}
{%- endif -%}""",
    "macros": """{%- macro line(role, text, end='\\n') -%}
{{ role | upper }}: {{ text }}{{ end }}
{%- endmacro -%}
{%- macro all(messages) -%}
  {%- for message in messages -%}{{ line(message.role, message.content | trim) }}{%- endfor -%}
{%- endmacro -%}
{{ all(messages) }}{{ line('assistant', '', end='') if add_generation_prompt }}""",
}

# Expressions, each written by itself.
EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2
7 // 2 ~ ' ' ~ -7 // 2 ~ ' ' ~ 7 // -2 ~ ' ' ~ -7 // -2
7 % 3 ~ ' ' ~ -7 % 3 ~ ' ' ~ 7 % -3 ~ ' ' ~ -7 % -3
2 ** 10 ~ ' ' ~ 2 ** -1 ~ ' ' ~ 2.0 ** 3
-2 ** 2
1.0 ~ ' ' ~ 1e20 ~ ' ' ~ 1e-5 ~ ' ' ~ 0.1 ~ ' ' ~ 123456789.125 ~ ' ' ~ 1e16 ~ ' ' ~ 1e15
1 / 3
5.5 // 2 ~ ' ' ~ -5.5 % 2
1 == 1.0 and true == 1
1 < 2 < 3
1 < 3 < 2
'a' < 'b' and 'B' < 'a'
not 1 == 2
not true or true
none is none and 1 is not none
undefined_name
undefined_name is defined
undefined_name is not defined
undefined_name | default('d')
'' | default('d')
'' | default('d', true)
none | default('d')
messages is defined and messages is sequence
[1, 2, 3][-1] ~ [1, 2, 3][5]
[1, 2, 3, 4, 5][1:3] ~ [1, 2, 3, 4, 5][::-1] ~ [1, 2, 3, 4, 5][::2] ~ [1, 2, 3, 4, 5][-2:]
'abcdef'[2] ~ 'abcdef'[1:4] ~ 'abcdef'[::-1] ~ 'abcdef'[-1]
[1, 'two', 3.0, none, true, [1], {'a': 1}]
{'a': 'it\'s', "b": "say \"hi\"", 3: [1, 2]}
'a\nb\t"c"' | tojson
{'a': 1, 'b': [1, 2.5, none, true], 'c': 'é'} | tojson
{'a': 1, 'b': [1, {}], 'c': []} | tojson(indent=2)
['x\'y', 'x"y', 'x\'"y', 'a\nb']
(1, 2)
(1,)
()
1, 2
'a' ~ 1 ~ none ~ true ~ 1.5
'ab' * 3
3 * 'ab'
[1] + [2, 3]
'a' 'b'
'%s'
"it's" ~ 'a\\b' ~ '\x41\u00e9'
'a' in 'abc' and 'd' not in 'abc'
2 in [1, 2] and 5 not in [1, 2]
'a' in {'a': 1}
'yes' if true else 'no'
'yes' if false
('a' if false else 'b') ~ 'c'
'a' or 'b'
'' or 'b'
'a' and ''
[] and 1
'  x '.strip() ~ '|' ~ '  x '.lstrip() ~ '|' ~ '  x '.rstrip() ~ '|'
'xxaxx'.strip('x') ~ 'xxaxx'.lstrip('x') ~ 'abcba'.strip('ab')
'a,b,c'.split(',') ~ 'a b  c '.split() ~ 'a,b,c'.split(',', 1)
'a b c'.split(' ')[-1]
'a,b,c'.rsplit(',', 1)
'one\ntwo\r\nthree'.splitlines()
'abc'.startswith('ab') ~ 'abc'.endswith('c') ~ 'abc'.startswith(('x', 'a'))
'hello world'.title() ~ 'hello World'.capitalize() ~ 'aB'.upper() ~ 'aB'.lower()
'a-b-c'.replace('-', '+') ~ 'a-b-c'.replace('-', '+', 1)
'abc'.find('c') ~ 'abc'.find('x')
'abcabc'.count('b')
', '.join(['a', 'b'])
'12'.isdigit() ~ 'a'.isdigit()
'straße'.upper()
"it's a test" | title
'HELLO there' | capitalize
' x ' | trim ~ '|'
'xax' | trim('x')
'abc' | upper | lower | length
'abc' | length ~ [1, 2] | length ~ {'a': 1} | count
[3, 1, 2] | sort ~ [3, 1, 2] | sort(reverse=true)
['b', 'A', 'c'] | sort
['b', 'A', 'c'] | sort(case_sensitive=true)
[{'n': 2}, {'n': 1}] | sort(attribute='n')
[1, 2, 3] | reverse | list
'abc' | reverse
[1, 2, 3] | first ~ [1, 2, 3] | last ~ 'abc' | first
[] | first
[1, 2, 3] | join(', ')
[1, 2] | join
[{'a': 1}, {'a': 2}] | join('-', attribute='a')
[{'a': 1}, {'a': 2}] | map(attribute='a') | list
['a', 'b'] | map('upper') | list
['a', 'b'] | map('replace', 'a', 'x') | join
[1, 2, 3, 4] | select('odd') | list ~ [1, 2, 3, 4] | reject('odd') | list
[0, 1, '', 'a'] | select | list
[{'r': 'a'}, {'r': 'b'}] | selectattr('r', 'equalto', 'a') | list
[{'r': 'a'}, {'r': 'b'}] | rejectattr('r', 'eq', 'a') | list
[{'r': 1}, {'q': 2}] | selectattr('r') | list
[{'r': 1}, {'q': 2}] | selectattr('r', 'defined') | list
[1, 2, 3, 4, 5] | batch(2) | list
[1, 2, 3] | batch(2, 'x') | list
[1, 2, 2, 3, 1] | unique | list
[1, 5, 3] | max ~ [1, 5, 3] | min ~ [1, 2, 3] | sum
[{'a': 1}, {'a': 2}] | sum(attribute='a')
'a\nb\n\nc' | indent
'a\nb' | indent(2, true)
'a\n\nb' | indent(2, blank=true)
'<a href="x">&\'</a>' | e
'<b>' | safe
3.7 | int ~ '42' | int ~ 'x' | int ~ 'x' | int(7) ~ '3.9' | int
'1.5' | float ~ 3 | float ~ 'x' | float
-3 | abs ~ -1.5 | abs
2.5 | round ~ 2.567 | round(2) ~ 2.1 | round(method='ceil') ~ 2.9 | round(0, 'floor')
42 | string ~ [1] | string
'abc' | list
{'b': 1, 'a': 2} | list
{'b': 1, 'a': 2} | dictsort
{'b': 1, 'a': 2} | items | list
{'b': 1, 'a': 2}.items() | list
{'b': 1}.keys() | list ~ {'b': 1}.values() | list
{'a': 1}.get('a') ~ {'a': 1}.get('b') ~ {'a': 1}.get('b', 2)
{'a': 1}.a ~ {'a': 1}['a'] ~ {'a': 1}.b
{'items': 1}['items']
dict(a=1, b=2)
dict({'a': 1}, b=2)
range(3) | list ~ range(1, 4) | list ~ range(5, 0, -2) | list
namespace(a=1).a
3 is odd ~ 4 is even ~ 6 is divisibleby 3 ~ 6 is divisibleby(4)
'a' is string ~ 1 is number ~ 1.5 is float ~ 1 is integer ~ true is boolean
[1] is iterable ~ {} is mapping ~ [1] is sequence ~ 'a' is sequence ~ {} is sequence
1 is eq 1 ~ 1 is ne 2 ~ 1 is lt 2 ~ 2 is ge 2 ~ 1 is in [1, 2]
true is true ~ false is false ~ 1 is true
'abc' is lower ~ 'ABC' is upper
1 is not none and 'x' is not number
'a' is defined and undefined_name is undefined
range is callable
messages[0].nothing.more
undefined_name.x
undefined_name[0]
undefined_name + 1
'a' + 1
1 + none
1 / 0
1 % 0
none.x
none | length
'x'.nothing()
nothing()
'a' | nothing
1 is nothing
[1] < 'a'
[1, 'a'] | sort
{'a': 1} < {'a': 2}
'x' | tojson | tojson
messages | length
messages | map(attribute='role') | join(',')
messages[0]['content'] if messages else 'none'
loop is defined
raise_exception('no')
true and false or not false
1 if 0 else 2 if 0 else 3
-1 | abs
- 1
+1 ~ -1.5
1 - -1
1_000
""".strip().split("\n")

# Statements and white space.
STATEMENTS = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc",
    "a\n  {%- if true -%}\n  b\n  {%- endif -%}\n  c",
    "a\n  {%+ if true %}\n  b\n  {%+ endif %}\nc",
    "a\n  {% if true +%}\n  b\n  {% endif +%}\nc",
    "a  {{ 1 }}  b\n  {{ 2 }}\n  c",
    "a  {{- 1 -}}  b\n  {{- 2 }}\n  c",
    "a\n{# comment #}\nb {# another\n#}\nc",
    "a\n  {#- comment -#}\n  b",
    "x {# a #}\ny",
    "{% raw %}{{ not this }} {% nor this %}{% endraw %}!",
    "a\n{% raw %}\n  {{ x }}\n{% endraw %}\nb",
    "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "end\n",
    "end\n\n",
    "\n\nstart",
    "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc",
    "{% for i in range(3) %}{{ i }}{% endfor %}",
    "{% for i in range(3) %}\n{{ i }}\n{% endfor %}\n",
    "{% for i in [] %}x{% else %}none{% endfor %}",
    "{% for i in range(5) if i is odd %}{{ loop.index }}:{{ i }} {% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }} {% endfor %}",
    "{% for k, v in {'x': 1, 'y': 2}.items() %}{{ k }}={{ v }} {% endfor %}",
    "{% for k in {'x': 1} %}{{ k }}{% endfor %}",
    "{% for c in 'añb' %}{{ c }}.{% endfor %}",
    "{% for i in range(4) %}{{ loop.first }}{{ loop.last }}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.length }} {% endfor %}",
    "{% for i in 'ab' %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{% for j in 'x' %}{{ loop.depth0 }}{% endfor %}{% endfor %}",
    "{% for i in range(4) %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set x = 1 %}{% for i in range(2) %}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for i in range(3) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set x %}a{{ 1 }}b{% endset %}{{ x }}{{ x | length }}",
    "{% set x | upper %}abc{% endset %}{{ x }}",
    "{% filter upper %}abc{{ 'd' }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}aac{% endfilter %}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}",
    "{% macro f(a, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a=4) }}{{ f() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% set g = 7 %}{% macro f() %}{{ g }}{{ h }}{% endmacro %}{% set h = 8 %}{{ f() }}",
    "{% for h in [1] %}{% macro f() %}{{ h }}{% endmacro %}{% endfor %}{{ h }}",
    "{% if false %}a{% elif true %}b{% else %}c{% endif %}",
    "{% if undefined_name %}a{% else %}b{% endif %}",
    "{% for i in undefined_name %}x{% endfor %}|",
    "{% for i in 5 %}x{% endfor %}",
    "{% for a, b in [1] %}x{% endfor %}",
    "{% generation %}a{% set z = 1 %}{% endgeneration %}{{ z }}",
    "{{ '{{' }}{{ '%}' }}",
    "{{ {'a': {'b': 1}}.a.b }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}}",
    "}} %} #}",
    "{ { % }",
    "{% if true %}",
    "{% endif %}",
    "{% for %}",
    "{{ 1 + }}",
    "{{ (1 }}",
    "{{ 'a }}",
    "{# a",
    "{% nothing %}",
    "{% set x.y = 1 %}",
    "{% set loop = 1 %}",
    "{{ messages.append(1) }}",
    "{% do 1 %}",
]


def pieces():
    return STATEMENTS + ["{{ " + expression + " }}" for expression in EXPRESSIONS]
