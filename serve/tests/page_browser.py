"""page_browser.py URL: the chat page in headless Chromium, by chromedriver: a conversation, the stop button, and answers that try to run scripts."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

url = sys.argv[1]
DRIVER = 9517
HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "[click](javascript:window.hacked=1) [data](data:text/html,<script>window.hacked=1</script>)",
    "[fine](https://example.com/a?b=1) **<b onmouseover=window.hacked=1>bold</b>** `<i>code</i>`",
    "```\n</pre><script>window.hacked = 1</script>\n```",
    "# <svg onload=window.hacked=1>\n- <iframe src=javascript:window.hacked=1>\n> <style>*{display:none}</style>",
]


def call(method, address, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


class Fake(BaseHTTPRequestHandler):
    """The real page, and hostile answers."""

    def log_message(self, *_):
        pass

    def send(self, kind, body, policy=None):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path != "/":
            return self.send("application/json", json.dumps({"data": [{"id": "<b>evil</b>"}]}).encode())
        with urllib.request.urlopen(url) as page:
            self.send("text/html; charset=utf-8", page.read(), page.headers["Content-Security-Policy"])

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        chunks = [{"choices": [{"delta": {"content": part}}]} for part in "\n\n".join(HOSTILE).split(" ")]
        for chunk in chunks:
            chunk["choices"][0]["delta"]["content"] += " "
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.send("text/event-stream", text.encode())


class Browser:
    def __init__(self):
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options = {"goog:chromeOptions": {"args": arguments}}
        base = f"http://127.0.0.1:{DRIVER}"
        session = call("POST", f"{base}/session", {"capabilities": {"alwaysMatch": options}})
        self.session = f"{base}/session/{session['value']['sessionId']}"

    def open(self, address):
        call("POST", f"{self.session}/url", {"url": address})

    def run(self, script):
        return call("POST", f"{self.session}/execute/sync", {"script": script, "args": []})["value"]

    def wait(self, script, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            found = self.run(script)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}; the page has {self.run('return document.body.innerText')}")

    def ask(self, text):
        self.run(f"document.getElementById('text').value = {json.dumps(text)}; document.getElementById('send').click()")

    def close(self):
        call("DELETE", self.session)


IDLE = "return !document.getElementById('send').disabled"


def conversation(browser):
    browser.open(url)
    browser.wait("return document.title !== 'Chat'")
    browser.ask("Once upon a time")
    browser.wait(IDLE)
    body = {"messages": [{"role": "user", "content": "Once upon a time"}]}
    answer = call("POST", f"{url}/v1/chat/completions", body)["choices"][0]["message"]["content"]
    shown = browser.run("return document.querySelector('article.assistant').innerText")
    words = answer.split()
    assert shown.split()[: len(words)] == words, (shown, answer)
    assert "tok/s" in shown, shown
    browser.ask("And then?")
    browser.wait(IDLE)
    assert browser.run("return document.querySelectorAll('article.assistant').length") == 2


def stop(browser):
    browser.run("document.getElementById('new').click()")
    browser.ask("Tell me more")
    browser.wait("return document.querySelector('article.assistant')?.innerText")
    browser.run("document.getElementById('stop').click()")
    browser.wait(IDLE, 5)
    end = time.time() + 10
    while call("GET", f"{url}/health")["running"]:
        assert time.time() < end, "the server goes on"
        time.sleep(0.05)


def hostile(browser):
    fake = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    threading.Thread(target=fake.serve_forever, daemon=True).start()
    browser.open(f"http://127.0.0.1:{fake.server_port}/")
    browser.wait("return document.getElementById('model').textContent === '<b>evil</b>'")
    browser.ask("<img src=x onerror='window.hacked = 1'>")
    browser.wait(IDLE)
    time.sleep(0.5)
    assert browser.run("return window.hacked === undefined")
    found = browser.run("return [...document.querySelectorAll('#log *')].map((e) => e.tagName)")
    allowed = {"ARTICLE", "P", "PRE", "CODE", "STRONG", "EM", "A", "H2", "UL", "LI", "BLOCKQUOTE", "BR", "SMALL"}
    assert set(found) <= allowed, set(found) - allowed
    links = browser.run("return [...document.querySelectorAll('#log a')].map((e) => e.href)")
    assert links == ["https://example.com/a?b=1"], links
    assert "<script>window.hacked = 1</script>" in browser.run("return document.getElementById('log').innerText")
    # The policy holds even where markup would get in.
    browser.run("const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s)")
    assert browser.run("return window.hacked === undefined")


driver = subprocess.Popen(["chromedriver", f"--port={DRIVER}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    for _ in range(100):
        try:
            call("GET", f"http://127.0.0.1:{DRIVER}/status")
            break
        except OSError:
            time.sleep(0.1)
    browser = Browser()
    for test in [conversation, stop, hostile]:
        test(browser)
    browser.close()
finally:
    driver.terminate()
print("the page: all as it should be")
