"""check.py TEXTS LIMIT_S BROWSER ARG...: does the browser's compiler take the WGSL texts in the folder TEXTS?

Serves kernels.html and the texts on loopback, opens the page in the browser, and prints what becomes of the texts. Fails where one is refused,
where one without f16 is not compiled, where a kernel of wgsl/ has no text, and where the browser has not answered after LIMIT_S seconds.
"""
import http.server, json, os, pathlib, queue, re, signal, subprocess, sys, tempfile, threading

folder, limit, *browser = sys.argv[1:]
root = pathlib.Path(__file__).parents[2]
page = (root / "tests/browser/kernels.html").read_bytes()
# Its compiler does not know the attribute, which is one of wgpu.
texts = {path.stem: path.read_text().replace("@coherent ", "") for path in sorted(pathlib.Path(folder).glob("*.wgsl"))}
answers = queue.Queue()


class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/texts.json":
            items = [{"name": name, "text": text} for name, text in texts.items()]
            self.reply(200, "application/json", json.dumps(items).encode())
        elif self.path == "/":
            self.reply(200, "text/html", page)
        else:
            self.reply(404, "text/plain", b"")

    def do_POST(self):
        answer = self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(204, "text/plain", b"")
        answers.put(json.loads(answer))

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, tempfile.TemporaryFile("w+") as log:
    command = [*browser, f"--user-data-dir={profile}", f"http://127.0.0.1:{server.server_port}/"]
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        answer = answers.get(timeout=float(limit))
    except queue.Empty:
        log.seek(0)
        sys.exit(f"{log.read()[-4000:]}\nthe browser has not answered after {limit} s")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

if "error" in answer:
    sys.exit(answer["error"])
results = answer["results"]
refused = {name: result["refused"] for name, result in results.items() if "refused" in result}
skipped = {name: result["skipped"] for name, result in results.items() if "skipped" in result}
compiled = results.keys() - refused.keys() - skipped.keys()
for name, message in refused.items():
    print(f"REFUSED {name}\n{message}\n")
print(f"{answer['adapter']}: {len(compiled)} texts compiled, {len(refused)} refused, {len(skipped)} skipped", end="")
print("".join(f" (the adapter has no {why}: {list(skipped.values()).count(why)})" for why in sorted(set(skipped.values()))))

missing = [name for name, text in texts.items() if "enable f16;" not in text and name not in compiled and name not in refused]
kernels = {path.stem for path in (root / "wgsl").glob("*/*.wgsl") if "@compute" in path.read_text()}
seen = {entry for name in results for entry in re.findall(r"@compute .*\nfn (\w+)", texts[name])}
if missing:
    print("not compiled, though without f16:", *missing)
if kernels - seen:
    print("no text of:", *sorted(kernels - seen))
sys.exit(1 if refused or missing or kernels - seen else 0)
