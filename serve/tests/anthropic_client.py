"""anthropic_client.py URL MODEL: the official client of Anthropic against a server with the shipped model. Any difference from what it should be ends it."""

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
    fails(anthropic.BadRequestError, "tools", lambda: create(**asked, tools=[{"name": "f", "input_schema": {"type": "object"}}]))
    wrong = anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0)
    try:
        wrong.messages.create(**asked)
    except anthropic.AuthenticationError:
        return
    raise AssertionError("a wrong key is accepted")


answers()
errors()
print(f"anthropic {anthropic.__version__}: all as it should be")
