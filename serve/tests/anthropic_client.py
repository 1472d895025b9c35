"""anthropic_client.py URL MODEL: the official client of Anthropic against a server with the shipped model. Any difference from what it should be ends it."""

import json
import sys

import anthropic

url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="sesame", max_retries=0)
messages = [{"role": "user", "content": "Once upon a time"}]
asked = {"model": model, "system": "A tale.", "messages": messages, "max_tokens": 12, "extra_body": {"temperature": 0}}


def text(answer):
    return "".join(block.text for block in answer.content if block.type == "text")


def answers():
    whole = client.messages.create(**asked)
    assert (whole.role, whole.stop_reason, whole.usage.output_tokens) == ("assistant", "max_tokens", 12), whole
    with client.messages.stream(**asked) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert streamed == text(whole) == text(final), (streamed, whole, final)
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12), final
    count = client.messages.count_tokens(model=model, system="A tale.", messages=messages).input_tokens
    assert count == final.usage.input_tokens + final.usage.cache_read_input_tokens, (count, final)
    stop = streamed[8:12]
    cut = client.messages.create(**asked, stop_sequences=["never written", stop])
    assert (cut.stop_reason, cut.stop_sequence, text(cut)) == ("stop_sequence", stop, streamed[: streamed.find(stop)]), cut
    # The answer goes back as the client has it, and a last one is continued.
    turn = [*messages, {"role": "assistant", "content": whole.content}, {"role": "user", "content": "And then?"}]
    assert client.messages.create(model=model, messages=turn, max_tokens=3).usage.output_tokens == 3
    begun = [*messages, {"role": "assistant", "content": "there was"}]
    assert client.messages.create(model=model, messages=begun, max_tokens=3).usage.output_tokens == 3


def tools():
    schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}
    tool = {"name": "weather", "description": "Tells the weather.", "input_schema": schema}
    used = {**asked, "max_tokens": 80, "tools": [tool], "tool_choice": {"type": "tool", "name": "weather"}}
    whole = client.messages.create(**used)
    [call] = whole.content
    assert (whole.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather"), whole
    assert call.input["city"] in ("Oslo", "Rome"), call
    with client.messages.stream(**used) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and final.content[0].input == call.input, final
    assert json.loads("".join(pieces)) == call.input and len(pieces) > 1, pieces
    # The call and its result go back as the client has them.
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Rain."}]}
    turn = [*messages, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(model=model, messages=turn, tools=[tool], tool_choice={"type": "none"}, max_tokens=3).usage.output_tokens == 3
    one = client.messages.count_tokens(model=model, messages=messages, tools=[tool]).input_tokens
    assert one > client.messages.count_tokens(model=model, messages=messages).input_tokens
    wrong = [{"role": "user", "content": [{**result, "tool_use_id": "other"}]}]
    fails(anthropic.BadRequestError, "messages[0].content[0].tool_use_id", lambda: client.messages.create(model=model, messages=wrong, max_tokens=3))


def fails(error, part, call):
    try:
        call()
    except error as e:
        assert part in e.message and e.body["type"] == "error", e.body
        return
    raise AssertionError(f"no {error.__name__}: {part}")


def errors():
    create = client.messages.create
    fails(anthropic.BadRequestError, "temperature", lambda: create(**{**asked, "extra_body": {"temperature": 9}}))
    fails(anthropic.NotFoundError, "claude", lambda: create(**{**asked, "model": "claude"}))
    fails(anthropic.BadRequestError, "tools", lambda: create(**asked, tools=[{"name": "f g", "input_schema": {"type": "object"}}]))
    wrong = anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0)
    try:
        wrong.messages.create(**asked)
    except anthropic.AuthenticationError:
        return
    raise AssertionError("a wrong key is accepted")


answers()
tools()
errors()
print(f"anthropic {anthropic.__version__}: all as it should be")
