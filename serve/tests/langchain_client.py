"""langchain_client.py URL MODEL: langchain-openai against a server with the shipped model. Any difference from what it should be ends it."""

import asyncio
import sys
from importlib.metadata import version

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from client_errors import fails

url, model = sys.argv[1:]
server = {"base_url": f"{url}/v1", "api_key": "sesame", "model": model, "max_retries": 0}
chat = ChatOpenAI(**server, temperature=0, seed=1, max_tokens=12, stream_usage=True)
messages = [SystemMessage("A tale."), HumanMessage("Once upon a time")]


def conversations():
    whole = chat.invoke(messages)
    assert whole.usage_metadata["output_tokens"] == 12 and whole.response_metadata["finish_reason"] == "length", whole
    chunks = list(chat.stream(messages))
    assert "".join(chunk.text for chunk in chunks) == whole.text, (chunks, whole)
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 12, chunks
    # The answer goes back as the client has it, and a message may have a name and parts.
    parts = HumanMessage([{"type": "text", "text": "And "}, {"type": "text", "text": "then?"}], name="ann")
    assert chat.invoke([*messages, whole, parts]).usage_metadata["input_tokens"] > whole.usage_metadata["input_tokens"]
    assert chat.invoke([*messages, AIMessage("there was"), HumanMessage("And then?")]).text
    cut = chat.bind(stop=[whole.text[8:12]]).invoke(messages)
    assert cut.text == whole.text[: whole.text.find(whole.text[8:12])], cut
    scored = chat.bind(logprobs=True, top_logprobs=2).invoke(messages).response_metadata["logprobs"]["content"]
    assert len(scored) == 12 and all(len(token["top_logprobs"]) == 2 for token in scored), scored
    chain = ChatPromptTemplate.from_messages([("system", "A tale."), ("user", "{begin}")]) | chat
    assert chain.invoke({"begin": "Once upon a time"}).text == whole.text
    several = chat.batch([messages] * 5)
    assert [answer.text for answer in several] == [whole.text] * 5, several


async def at_once():
    async def one():
        return "".join([chunk.text async for chunk in chat.astream(messages)])

    assert len(set(await asyncio.gather(*(one() for _ in range(5))))) == 1


def responses():
    newer = ChatOpenAI(**server, temperature=0, max_tokens=12, use_responses_api=True)
    assert newer.invoke(messages).text == chat.invoke(messages).text
    assert "".join(chunk.text for chunk in newer.stream(messages)) == chat.invoke(messages).text


def completions():
    complete = OpenAI(**server, temperature=0, seed=1, max_tokens=12)
    whole = complete.invoke("The bear")
    assert whole and "".join(complete.stream("The bear")) == whole
    several = complete.generate(["The bear", "Once"]).generations
    assert len(several) == 2 and several[0][0].text == whole, several


def embeddings():
    # Texts are sent as they are: the client's own tokens are of OpenAI's models.
    embed = OpenAIEmbeddings(**server, check_embedding_ctx_length=False)
    texts = ["The bear ate honey.", "A ship at sea."]
    vectors = embed.embed_documents(texts)
    close = sum(a * b for a, b in zip(vectors[0], embed.embed_query(texts[0])))
    assert len(vectors) == 2 and abs(close - 1) < 1e-4, close


def errors():
    fails(openai.AuthenticationError, "API key", lambda: ChatOpenAI(**{**server, "api_key": "wrong"}).invoke(messages))
    fails(openai.NotFoundError, "gpt-5", lambda: ChatOpenAI(**{**server, "model": "gpt-5"}).invoke(messages))
    fails(openai.BadRequestError, "temperature", lambda: ChatOpenAI(**server, temperature=9).invoke(messages))
    # langchain-openai has an error of its own, of the same class, for contexts.
    fails(openai.BadRequestError, "maximum context length", lambda: chat.invoke("tale " * 1000))
    fails(openai.BadRequestError, "only `text`", lambda: chat.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "data:,"}}])]))


conversations()
asyncio.run(at_once())
responses()
completions()
embeddings()
errors()
print(f"langchain-openai {version('langchain-openai')}: all as it should be")
