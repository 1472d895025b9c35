"""lm_eval_task.py URL MODEL FOLDER: lm-evaluation-harness scores a task through /v1/completions, with the tokenizer of MODEL. Each score is the sum
of the server's own log-probabilities, and likely ends win."""

import json
import sys
import urllib.request
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

url, model, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
CASES = [
    ("Once upon", [" a time", " the bucket"], 0),
    ("The bear ate the", [" running", " honey"], 1),
    ("The king and the", [" queen", " and"], 0),
    ("The little girl said to her", [" mother", " of"], 0),
]
TASK = """
task: tales
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{ends}}}}"
doc_to_target: "{{{{right}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


def score(text, end):
    """The log-probability of an end, by one request of our own."""
    body = {"prompt": text + end, "echo": True, "logprobs": 1, "max_tokens": 0}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    found = json.load(urllib.request.urlopen(request))["choices"][0]["logprobs"]
    return sum(p for p, at in zip(found["token_logprobs"], found["text_offset"]) if at >= len(text))


data = folder / "tales.jsonl"
data.write_text("".join(json.dumps({"text": text, "ends": ends, "right": right}) + "\n" for text, ends, right in CASES))
(folder / "tales.yaml").write_text(TASK.format(data=data))
arguments = f"model=tales-22m,base_url={url}/v1/completions,tokenizer={model},tokenizer_backend=huggingface,max_length=500,batch_size=4"
tasks = TaskManager(include_path=str(folder), include_defaults=False)
results = lm_eval.simple_evaluate(model="local-completions", model_args=arguments, tasks=["tales"], task_manager=tasks, log_samples=True)
for sample in results["samples"]["tales"]:
    document = sample["doc"]
    for end, (logprob, _) in zip(document["ends"], sample["filtered_resps"]):
        own = score(document["text"], end)
        # The harness gives the text's tokens without the one that begins it, which our request has.
        print(f"{document['text']!r}{end!r}: {logprob:.3f} by the harness, {own:.3f} with BOS")
accuracy = results["results"]["tales"]["acc,none"]
assert accuracy >= 0.75, results["results"]
print(f"lm-evaluation-harness: accuracy {accuracy}")
