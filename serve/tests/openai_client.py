"""openai_client.py URL MODEL: the official client of OpenAI against a server with the shipped model. Any difference from what it should be ends it."""

import asyncio
import json
import sys
import urllib.request

import openai

KEY = "sesame"
url, model = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
messages = [{"role": "system", "content": "A tale."}, {"role": "user", "content": "Once upon a time"}]
greedy = {"model": model, "temperature": 0, "seed": 1}


def fails(error, status, text, call):
    try:
        call()
    except error as e:
        assert e.status_code == status and text in e.message, (e.status_code, e.message)
        return e
    raise AssertionError(f"no {error.__name__}: {text}")


def models():
    assert [m.id for m in client.models.list()] == [model]
    assert client.models.retrieve(model).owned_by == "bitnet-wgpu"


def conversations():
    answer = client.chat.completions.create(messages=messages, max_completion_tokens=12, user="me", **greedy)
    choice, usage = answer.choices[0], answer.usage
    assert (choice.message.role, choice.finish_reason, usage.completion_tokens) == ("assistant", "length", 12), answer
    assert usage.total_tokens == usage.prompt_tokens + 12 and choice.message.content, answer
    options = {"max_tokens": 12, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(messages=messages, stream=True, **options, **greedy))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == choice.message.content, (text, choice.message.content)
    assert chunks[-1].usage.completion_tokens == 12 and chunks[-2].choices[0].finish_reason == "length"
    # The answer goes back as the client has it.
    turn = [*messages, choice.message, {"role": "user", "content": "And then?"}]
    assert client.chat.completions.create(messages=turn, max_tokens=3, **greedy).usage.completion_tokens == 3
    stop = text[8:12]
    with client.chat.completions.stream(messages=messages, max_tokens=12, stop=[stop], **greedy) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == text[: text.find(stop)]


def completions():
    whole = client.completions.create(prompt="The bear", max_tokens=20, **greedy).choices[0].text
    chunks = client.completions.create(prompt="The bear", max_tokens=20, stream=True, **greedy)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    cut = client.completions.create(prompt="The bear", max_tokens=20, stop=whole[8:12], **greedy).choices[0]
    assert (cut.text, cut.finish_reason) == (whole[: whole.find(whole[8:12])], "stop"), (whole, cut)
    ban = client.completions.create(prompt="The bear", max_tokens=4, logit_bias={"2047": 100}, **greedy).choices[0]
    assert (ban.text, ban.finish_reason) == ("", "stop"), ban
    more = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2}
    several = client.completions.create(model=model, prompt=["Once", "The bear"], n=2, seed=3, max_tokens=5, extra_body=more)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]


def logprobs():
    choice = client.chat.completions.create(messages=messages, max_tokens=4, logprobs=True, top_logprobs=2, **greedy).choices[0]
    content = choice.logprobs.content
    assert len(content) == 4 and all(len(token.top_logprobs) == 2 and token.logprob == token.top_logprobs[0].logprob for token in content), content
    echo = client.completions.create(prompt="The bear", max_tokens=0, echo=True, logprobs=1, **greedy).choices[0]
    assert echo.text == "The bear" and echo.logprobs.token_logprobs[0] is None, echo
    assert all(logprob < 0 for logprob in echo.logprobs.token_logprobs[1:]) and len(echo.logprobs.tokens) > 2, echo


def responses():
    answer = client.responses.create(model=model, instructions="A tale.", input="Once upon a time", max_output_tokens=12, temperature=0)
    chat = client.chat.completions.create(messages=messages, max_tokens=12, **greedy)
    assert answer.output_text == chat.choices[0].message.content and answer.status == "incomplete", answer
    assert (answer.usage.output_tokens, answer.incomplete_details.reason) == (12, "max_output_tokens"), answer
    # The answer goes back as the client has it.
    turn = [{"role": "user", "content": "Once upon a time"}, *answer.output, {"role": "user", "content": "And then?"}]
    assert client.responses.create(model=model, input=turn, max_output_tokens=3).usage.output_tokens == 3
    with client.responses.stream(model=model, instructions="A tale.", input="Once upon a time", max_output_tokens=12, temperature=0) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert deltas == answer.output_text, deltas
    fails(openai.BadRequestError, 400, "previous_response_id", lambda: client.responses.create(model=model, input="Hi", previous_response_id="resp_1"))


CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}


def tools():
    function = {"name": "weather", "description": "Tells the weather.", "parameters": CITY, "strict": True}
    asked = {"messages": messages, "tools": [{"type": "function", "function": function}], "tool_choice": "required", "parallel_tool_calls": False}
    choice = client.chat.completions.create(**asked, max_tokens=80, **greedy).choices[0]
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content, call.function.name) == ("tool_calls", None, "weather"), choice
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome"), call
    with client.chat.completions.stream(**asked, max_tokens=80, **greedy) as stream:
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments and len(pieces) > 1, (streamed, pieces)
    # The call and its result go back as the client has them.
    turn = [*messages, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    assert client.chat.completions.create(messages=turn, max_tokens=3, **greedy).usage.completion_tokens == 3
    named = {"type": "function", "function": {"name": "sub"}}
    e = fails(openai.BadRequestError, 400, "`sub`", lambda: client.chat.completions.create(**{**asked, "tool_choice": named}, **greedy))
    assert e.param == "tool_choice", e.body
    # The newer API.
    asked = {"model": model, "input": "Oslo?", "tools": [{"type": "function", **function}], "tool_choice": {"type": "function", "name": "weather"}}
    answer = client.responses.create(**asked, max_output_tokens=80, temperature=0)
    [call] = answer.output
    assert (answer.status, call.type, call.name) == ("completed", "function_call", "weather"), answer
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome"), call
    with client.responses.stream(**asked, max_output_tokens=80, temperature=0) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.function_call_arguments.delta")
        assert stream.get_final_response().output[0].arguments == deltas == call.arguments, deltas
    # The response has what was asked.
    [tool] = answer.tools
    assert (tool.name, tool.parameters, tool.strict, answer.tool_choice.name) == ("weather", CITY, True, "weather"), answer
    assert (answer.max_output_tokens, answer.temperature, answer.parallel_tool_calls, answer.metadata) == (80, 0, True, {}), answer
    type(answer).model_validate(answer.model_dump(by_alias=True))
    turn = [{"role": "user", "content": "Oslo?"}, call, {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}]
    assert client.responses.create(model=model, input=turn, max_output_tokens=3).usage.output_tokens == 3


def token(text):
    """The first token of a text, by a path that is not of OpenAI's API."""
    body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/tokenize", body, headers)) as answer:
        return json.load(answer)["tokens"][0]


def formats():
    """A format of the answer, alone and together with tools."""
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    text = client.chat.completions.create(messages=messages, response_format=form, max_tokens=80, **greedy).choices[0].message.content
    assert json.loads(text)["city"] in ("Oslo", "Rome"), text
    tool = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
    both = {"messages": messages, "tools": [tool], "response_format": form, "parallel_tool_calls": False, "max_tokens": 80, **greedy}
    for first, reason in [("<", "tool_calls"), ("{", "stop")]:
        bias = {str(token(first)): 100}
        choice = client.chat.completions.create(**both, logit_bias=bias).choices[0]
        [said] = [call.function.arguments for call in choice.message.tool_calls or []] or [choice.message.content]
        assert choice.finish_reason == reason and json.loads(said)["city"] in ("Oslo", "Rome"), choice
        with client.chat.completions.stream(**both, logit_bias=bias) as stream:
            streamed = stream.get_final_completion().choices[0]
        calls = [call.function.arguments for call in streamed.message.tool_calls or []]
        assert [said] == (calls or [streamed.message.content]), streamed
    answer = client.responses.create(model=model, input="Oslo?", text={"format": {"type": "json_schema", "name": "city", "schema": CITY}}, temperature=0)
    assert answer.text.format.name == "city" and answer.text.format.schema_ == CITY, answer.text
    assert json.loads(answer.output_text)["city"] in ("Oslo", "Rome") and answer.completed_at >= answer.created_at, answer
    type(answer).model_validate(answer.model_dump(by_alias=True))
    more = {"guided_json": CITY, "guided_choice": ["a"]}
    fails(openai.BadRequestError, 400, "guided_json", lambda: client.completions.create(prompt="Hi", extra_body=more, **greedy))


def errors():
    wrong = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    fails(openai.AuthenticationError, 401, "API key", wrong.models.list)
    fails(openai.NotFoundError, 404, "gpt-5", lambda: client.completions.create(model="gpt-5", prompt="Hi"))
    create = client.chat.completions.create
    e = fails(openai.BadRequestError, 400, "temperature", lambda: create(model=model, messages=messages, temperature=9))
    assert (e.param, e.type) == ("temperature", "invalid_request_error"), e.body
    e = fails(openai.BadRequestError, 400, "maximum context length", lambda: client.completions.create(model=model, prompt="tale " * 1000))
    assert e.code == "context_length_exceeded", e.body
    fails(openai.BadRequestError, 400, "tools", lambda: create(model=model, messages=messages, tools=[{"type": "function", "function": {"name": "f g"}}]))
    fails(openai.APIStatusError, 413, "bytes", lambda: client.completions.create(model=model, prompt="x" * (5 << 20)))


async def many():
    """More clients than slots, of which some leave in the middle: each has what it has alone. The queue has an end, and the client tries again."""
    alone = {n: client.completions.create(prompt="The bear", max_tokens=9 + n, **greedy).choices[0].text for n in range(4)}
    several = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=20)

    async def one(n):
        stream = await several.completions.create(prompt="The bear", max_tokens=9 + n % 4, stream=True, **greedy)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].text
            if n % 5 == 4:
                await stream.close()
                return
        assert text == alone[n % 4], (n, text)

    await asyncio.gather(*(one(n) for n in range(16)))


models()
conversations()
completions()
logprobs()
responses()
tools()
formats()
errors()
asyncio.run(many())
print(f"openai {openai.__version__}: all as it should be")
