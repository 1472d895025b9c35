"""litellm_client.py URL MODEL: litellm against a server with the shipped model. Any difference from what it should be ends it."""

import asyncio
import os
import sys
from importlib.metadata import version

# The list of prices is that of the package, which is not downloaded anew.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
from client_errors import fails

url, model = sys.argv[1:]
server = {"api_base": f"{url}/v1", "api_key": "sesame", "num_retries": 0}
messages = [{"role": "system", "content": "A tale."}, {"role": "user", "content": "Once upon a time"}]
asked = {"model": f"openai/{model}", "messages": messages, "max_tokens": 12, "temperature": 0, **server}


def joined(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def conversations():
    whole = litellm.completion(**asked, seed=1, user="me")
    text = whole.choices[0].message.content
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 12), whole
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == text and chunks[-1].usage.completion_tokens == 12, chunks
    turn = [*messages, whole.choices[0].message.model_dump(), {"role": "user", "content": "And then?"}]
    assert litellm.completion(**{**asked, "messages": turn}).usage.prompt_tokens > whole.usage.prompt_tokens
    scored = litellm.completion(**asked, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(scored) == 12 and len(scored[0].top_logprobs) == 2, scored
    assert len(litellm.completion(**{**asked, "temperature": 1}, n=2).choices) == 2
    # Other names of the same server: one for compatible servers, vLLM's, and LM Studio's.
    for name in ["custom_openai", "hosted_vllm", "lm_studio"]:
        other = litellm.completion(**{**asked, "model": f"{name}/{model}"})
        assert other.choices[0].message.content == text, (name, other)


async def at_once():
    answers = await asyncio.gather(*(litellm.acompletion(**asked) for _ in range(5)))
    assert len({answer.choices[0].message.content for answer in answers}) == 1, answers


def dialects():
    text = litellm.completion(**asked).choices[0].message.content
    answer = litellm.responses(model=f"openai/{model}", instructions="A tale.", input="Once upon a time", max_output_tokens=12, temperature=0, **server)
    # It asks for 16 tokens at least, as OpenAI does.
    assert answer.output[0].content[0].text.startswith(text), answer
    anthropic = {**asked, "model": f"anthropic/{model}", "api_base": url}
    assert litellm.completion(**anthropic).choices[0].message.content == text
    assert joined(litellm.completion(**anthropic, stream=True)) == text


def completions():
    asked = {"model": f"text-completion-openai/{model}", "prompt": "The bear", "max_tokens": 12, "temperature": 0, **server}
    whole = litellm.text_completion(**asked).choices[0].text
    assert whole and "".join(chunk.choices[0].text or "" for chunk in litellm.text_completion(**asked, stream=True)) == whole


def embeddings():
    found = litellm.embedding(model=f"openai/{model}", input=["The bear ate honey.", "A ship at sea."], **server)
    assert [vector["index"] for vector in found.data] == [0, 1] and found.usage.prompt_tokens > 5, found.usage


def errors():
    fails(litellm.AuthenticationError, "API key", lambda: litellm.completion(**{**asked, "api_key": "wrong"}))
    fails(litellm.NotFoundError, "nobody", lambda: litellm.completion(**{**asked, "model": "openai/nobody"}))
    fails(litellm.BadRequestError, "temperature", lambda: litellm.completion(**{**asked, "temperature": 9}))
    # By each name, and for a text that is refused before it is encoded.
    anthropic = {"model": f"anthropic/{model}", "api_base": url}
    for more in [{}, {"model": f"custom_openai/{model}"}, {"model": f"hosted_vllm/{model}"}, {"model": f"lm_studio/{model}"}, anthropic]:
        for text in ["tale " * 1000, "tale " * 100000]:
            long = {**asked, "messages": [{"role": "user", "content": text}], **more}
            fails(litellm.ContextWindowExceededError, "maximum context length", lambda: litellm.completion(**long))


conversations()
asyncio.run(at_once())
dialects()
completions()
embeddings()
errors()
print(f"litellm {version('litellm')}: all as it should be")
