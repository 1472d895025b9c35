"""llama_index_client.py URL MODEL: llama-index against a server with the shipped model. Any difference from what it should be ends it."""

import asyncio
import sys
from importlib.metadata import version

import openai
from llama_index.core.base.llms.types import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from client_errors import fails

url, model = sys.argv[1:]
server = {"model": model, "api_base": f"{url}/v1", "api_key": "sesame", "max_retries": 0}
asked = {**server, "temperature": 0, "max_tokens": 12, "context_window": 512}
chat = OpenAILike(**asked, is_chat_model=True)
messages = [ChatMessage(role="system", content="A tale."), ChatMessage(role="user", content="Once upon a time")]


def conversations():
    whole = chat.chat(messages)
    assert whole.raw.usage.completion_tokens == 12 and whole.message.content, whole
    chunks = list(chat.stream_chat(messages))
    assert "".join(chunk.delta for chunk in chunks) == chunks[-1].message.content == whole.message.content, chunks
    turn = [*messages, whole.message, ChatMessage(role="user", content="And then?")]
    assert chat.chat(turn).raw.usage.prompt_tokens > whole.raw.usage.prompt_tokens
    # A prompt is a message of the user's to a model of chats.
    assert chat.complete("Once upon a time").text == chat.chat(messages[1:]).message.content
    scored = OpenAILike(**asked, is_chat_model=True, logprobs=True, top_logprobs=2).chat(messages)
    assert len(scored.logprobs) == 12 and len(scored.logprobs[0]) == 2, scored.logprobs


async def at_once():
    answers = await asyncio.gather(*(chat.achat(messages) for _ in range(5)))
    assert len({answer.message.content for answer in answers}) == 1, answers


def completions():
    complete = OpenAILike(**asked, is_chat_model=False)
    whole = complete.complete("The bear").text
    assert whole and "".join(chunk.delta for chunk in complete.stream_complete("The bear")) == whole
    assert complete.chat(messages).message.content


def embeddings():
    embed = OpenAILikeEmbedding(model_name=model, api_base=f"{url}/v1", api_key="sesame")
    texts = ["The bear ate honey.", "A ship at sea."]
    vectors = embed.get_text_embedding_batch(texts)
    close = sum(a * b for a, b in zip(vectors[0], embed.get_query_embedding(texts[0])))
    assert len(vectors) == 2 and abs(close - 1) < 1e-4, close


def errors():
    def other(**more):
        return OpenAILike(**{**asked, "is_chat_model": True, **more})

    fails(openai.AuthenticationError, "API key", lambda: other(api_key="wrong").chat(messages))
    fails(openai.NotFoundError, "gpt-5", lambda: other(model="gpt-5").chat(messages))
    fails(openai.BadRequestError, "top_p", lambda: other(additional_kwargs={"top_p": 2}).chat(messages))
    fails(openai.BadRequestError, "maximum context length", lambda: chat.complete("tale " * 1000))


conversations()
asyncio.run(at_once())
completions()
embeddings()
errors()
print(f"llama-index-llms-openai-like {version('llama-index-llms-openai-like')}: all as it should be")
