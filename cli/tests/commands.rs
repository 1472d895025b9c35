//! The commands as people run them: the program itself, on the shipped model.

use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m");
const HELDOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m/golden/heldout_own.txt");

fn bitnet(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bitnet"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn succeeds(arguments: &[&str]) -> String {
    let output = bitnet(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", errors(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let text = succeeds(&[arguments, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Fails with one line that names `wanted`, and with no output.
fn fails(arguments: &[&str], wanted: &str) {
    let output = bitnet(arguments).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
    let error = errors(&output);
    assert!(error.contains("error: ") && error.contains(wanted) && !error.contains("panicked"), "{arguments:?}: {error}");
}

/// With its input.
fn answers(arguments: &[&str], input: &str) -> String {
    let mut child = bitnet(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// A directory that is gone with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bitnet-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// A copy of the shipped model, of which a file is another.
    fn model(&self, file: &str, change: impl Fn(&[u8]) -> Vec<u8>) -> String {
        for entry in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
            let bytes = fs::read(Path::new(TALES).join(entry)).unwrap();
            fs::write(self.0.join(entry), if entry == file { change(&bytes) } else { bytes }).unwrap();
        }
        self.0.display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn run_continues_a_text() {
    let run = |more: &[&str]| json(&[&["run", TALES, "Once upon a time", "--max-tokens", "12"], more].concat());
    let greedy = run(&["--greedy"]);
    assert_eq!(greedy["stop"], "MaxTokens");
    let text = succeeds(&["run", TALES, "Once upon a time", "--max-tokens", "12", "--greedy"]);
    assert_eq!(text, format!("Once upon a time{}\n", greedy["text"].as_str().unwrap()));
    assert_eq!(answers(&["run", TALES, "-", "--max-tokens", "12", "--greedy"], "Once upon a time"), text);
    // On two devices, of one adapter here: what is on which is said, and the text is that of one.
    let [one, two] = [&["--adapter", "0"][..], &["--adapter", "0", "--adapter", "0", "--split", "3,5"]].map(|more| {
        let output = bitnet(&[&["run", TALES, "Once upon a time", "--max-tokens", "12", "--greedy"], more].concat()).output().unwrap();
        (output.stdout.clone(), errors(&output))
    });
    assert!(one.0 == two.0 && two.1.contains("layers 1 to 3 of 8 on") && two.1.contains("layers 4 to 8 of 8 on"), "{one:?}, {two:?}");
    assert_eq!(answers(&["run", TALES, "--max-tokens", "12", "--greedy"], "Once upon a time\n"), text);
    let penalised = run(&["--greedy", "--presence-penalty", "-0.5", "--stop", "- x", "--stop", "--"]);
    assert_eq!(penalised["ids"].as_array().unwrap().len(), 12);
    // The first token is forbidden, and another wanted above all.
    let first = |run: &Value| run["ids"][0].as_u64().unwrap();
    let (forbidden, wanted) = (format!("{}=-inf", first(&greedy)), "7=1000");
    assert_ne!(first(&run(&["--greedy", "--logit-bias", &forbidden])), first(&greedy));
    assert_eq!(run(&["--greedy", "--logit-bias", &forbidden, "--logit-bias", wanted])["ids"], Value::from(vec![7; 12]));
    // It samples unless it is told not to, the same for a seed.
    assert_eq!(run(&["--cpu"])["ids"], run(&["--cpu", "--seed", "0"])["ids"]);
    assert_ne!(run(&["--cpu"])["ids"], run(&["--cpu", "--seed", "1"])["ids"]);
    assert_ne!(run(&["--cpu"])["ids"], greedy["ids"]);
    assert_eq!(run(&["--cpu"])["ids"], run(&["--cpu", "--threads", "3"])["ids"]);
    let ids = |ids: &str| json(&["run", TALES, "--ids", ids, "--greedy", "--max-tokens", "3", "--cpu"])["ids"].clone();
    assert_eq!(ids("2046,7,9").as_array().unwrap().len(), 3);
    let stopped = run(&["--greedy", "--stop", "king"]);
    assert!(stopped["stop"] == "StopString" && !stopped["text"].as_str().unwrap().contains("king"), "{stopped}");
    assert_eq!(run(&["--greedy", "--gpu"])["language"], "wgsl");
}

/// Guesses change nothing but the time, and `--json` counts them.
#[test]
fn speculation_is_counted() {
    let run = |more: &[&str]| json(&[&["run", TALES, "Once upon a time", "--max-tokens", "24", "--cpu"], more].concat());
    let plain = run(&[]);
    assert!(plain["speculation"].is_null());
    let own = run(&["--speculate", TALES, "--draft-tokens", "4"]);
    let count = |run: &Value, what: &str| run["speculation"][what].as_u64().unwrap();
    assert_eq!(own["ids"], plain["ids"]);
    assert!(count(&own, "accepted") == count(&own, "drafted") && count(&own, "passes") > 4, "{own}");
    let ngram = run(&["--speculate", "ngram"]);
    assert!(ngram["ids"] == plain["ids"] && count(&ngram, "drafted") >= count(&ngram, "accepted"), "{ngram}");
    let talk = |more: &[&str]| -> Vec<Value> {
        let arguments = [&["chat", TALES, "--max-tokens", "12", "--cpu", "--json"], more].concat();
        answers(&arguments, "Tell me a tale.\nAnother\n").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (plain, own) = (talk(&[]), talk(&["--speculate", TALES]));
    for (plain, own) in plain.iter().zip(&own) {
        assert_eq!(plain["content"], own["content"]);
        assert!(plain["speculation"].is_null() && count(own, "accepted") > 0, "{own}");
    }
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/newer");
    fails(&["run", TALES, "x", "--speculate", other], "512 tokens, the model's 2048");
    fails(&["run", TALES, "x", "--speculate", "no/such/model"], "no/such/model");
}

#[test]
fn layers_that_do_not_fit_stay_in_host_memory() {
    let run = |options: &[&str]| json(&[&["run", TALES, "Once upon a time", "--gpu", "--greedy", "--max-tokens", "4"], options].concat());
    let wanted = run(&[])["ids"].clone();
    let limit = ["--memory-limit", "6M"];
    assert_eq!(run(&[&["--offload", "auto"], &limit[..]].concat())["ids"], wanted);
    fails(&[&["run", TALES, "x", "--gpu"], &limit[..]].concat(), "over the memory limit of 6291456");
    let output = bitnet(&["run", TALES, "x", "--gpu", "--max-tokens", "1", "--offload", "6"]).output().unwrap();
    assert!(errors(&output).contains("6 of 8 layers stay in host memory"), "{}", errors(&output));
    fails(&["run", TALES, "x", "--gpu", "--offload", "9"], "9 layers; the model has 8");
    fails(&["run", TALES, "x", "--offload", "some"], "a number of layers, or `auto`");
    fails(&["run", TALES, "x", "--gpu", "--offload", "auto"], "as --memory-limit BYTES says");
    fails(&["run", TALES, "x", "--memory-limit", "99999999999G"], "a whole number of bytes");
}

#[test]
fn a_session_in_a_file_goes_on() {
    let directory = Directory::new("session");
    let file = directory.path("session.safetensors");
    let run = |prompt: &str, more: &[&str]| {
        json(&[&["run", TALES, prompt, "--greedy", "--max-tokens", "20", "--cpu"], more].concat())["ids"].clone()
    };
    assert_eq!(run("Once upon a time", &["--session", &file]), run("Once upon a time", &[]));
    let saved = fs::metadata(&file).unwrap().len();
    assert_eq!(run("Once upon a time, a bear", &["--session", &file]), run("Once upon a time, a bear", &[]));
    assert!(fs::metadata(&file).unwrap().len() > saved);
    fails(&["run", TALES, "x", "--cpu", "--session", &directory.path("no/where")], "there is no directory");
    for other in [format!("{TALES}/model.safetensors"), format!("{TALES}/config.json"), directory.path("")] {
        fails(&["run", TALES, "x", "--cpu", "--session", &other], "is not a saved session");
    }
    // The file is complete though nobody reads the text, and text comes before what may go wrong with the file.
    let unread = directory.path("unread");
    let mut child = bitnet(&["run", TALES, "Once", "--cpu", "--greedy", "--max-tokens", "60", "--session", &unread])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert!(run("Once", &["--session", &unread]).as_array().unwrap().len() == 20 && fs::metadata(&unread).unwrap().len() > 1000);
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 2, "nothing else is left");
    // Without tokens to generate, the prompt is in it.
    let empty = directory.path("empty");
    let ids = json(&["run", TALES, "Once upon", "--cpu", "--max-tokens", "0", "--session", &empty])["ids"].clone();
    assert!(ids == Value::Array(vec![]) && fs::metadata(&empty).unwrap().len() > 1000);
}

#[test]
fn chat_talks() {
    let arguments = ["chat", TALES, "--max-tokens", "10", "--cpu", "--json"];
    let lines =
        |input: &str| -> Vec<Value> { answers(&arguments, input).lines().map(|line| serde_json::from_str(line).unwrap()).collect() };
    let talk = lines("Tell me a tale.\n\nAnother\n");
    assert_eq!(talk.len(), 2);
    assert!(talk[1]["prompt_tokens"].as_u64() > talk[0]["prompt_tokens"].as_u64(), "the conversation goes on");
    let anew = lines("Tell me a tale.\n/clear\nTell me a tale.\n/bye\nnot read\n");
    assert_eq!((anew.len(), &anew[0], &anew[1]), (2, &talk[0], &talk[0]));
    let text = answers(&["chat", TALES, "--max-tokens", "10", "--cpu"], "Tell me a tale.\n");
    assert_eq!(text.trim_end_matches('\n'), talk[0]["content"].as_str().unwrap().trim_end_matches('\n'));
    let full = answers(&["chat", TALES, "--max-tokens", "5", "--cpu", "--context", "20"], &format!("{}\n/clear\nHi\n", "word ".repeat(50)));
    assert!(!full.trim().is_empty(), "what does not fit is left out, and the conversation goes on");
    fails(&["chat", TALES, "--context", "100000"], "the model's context is 512");
    let directory = Directory::new("chat");
    let plain = directory.model("", <[u8]>::to_vec);
    fs::remove_file(directory.path("chat_template.jinja")).unwrap();
    fails(&["chat", &plain], "chat template");
    fs::write(directory.path("template"), "{{ bos_token }}{{ messages[-1].content }}").unwrap();
    let with = ["chat", &plain, "--cpu", "--max-tokens", "5", "--json", "--chat-template", &directory.path("template")];
    let answer: Value = serde_json::from_str(&answers(&with, "Once upon a time\n")).unwrap();
    assert_eq!(answer["prompt_tokens"], 6);
    assert_eq!((&answer["reasoning"], &answer["reasoning_tokens"]), (&"".into(), &0.into()));
    // The shipped model does not reason, but what follows the mark counts as reasoning.
    fs::write(directory.path("template"), "{{ bos_token }}{{ messages[-1].content }}{% if enable_thinking %}<think>\n{% endif %}").unwrap();
    let thinking = [&with[..], &["--thinking", "on"]].concat();
    let reasons: Value = serde_json::from_str(&answers(&thinking, "Once upon a time\n")).unwrap();
    assert_eq!((&reasons["content"], &reasons["reasoning_tokens"]), (&"".into(), &5.into()));
    let reasoning = reasons["reasoning"].as_str().unwrap();
    let plain: Vec<_> = thinking.iter().copied().filter(|word| *word != "--json").collect();
    assert!(!reasoning.is_empty() && answers(&plain, "Once upon a time\n").trim() == reasoning);
    assert_eq!(answers(&[&plain[..], &["--hide-thinking"]].concat(), "Once upon a time\n").trim(), "");
    let without: Value = serde_json::from_str(&answers(&[&with[..], &["--thinking", "off"]].concat(), "Once upon a time\n")).unwrap();
    assert_eq!(without, answer);
    fails(&["chat", TALES, "--thinking", "on"], "does not know `enable_thinking`");
    fails(&["run", TALES, "Hi", "--thinking", "off"], "--chat-template and --thinking are for --chat");
    fails(&["run", TALES, "--ids", "1,2", "--thinking", "off"], "--chat-template and --thinking are for --chat");
}

#[test]
fn embed_prints_a_vector_a_line() {
    let lines = |text: &str| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    };
    let (bear, rain) = ("The bear ate honey.", "It rained all day.");
    let given = lines(&succeeds(&["embed", TALES, bear, rain, "--cpu"]));
    assert_eq!((given.len(), &given[1]["index"]), (2, &Value::from(1)));
    let vector = |line: &Value| -> Vec<f64> { line["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect() };
    let length = vector(&given[0]).iter().map(|x| x * x).sum::<f64>();
    assert!(vector(&given[0]).len() == 512 && (length - 1.0).abs() < 1e-5, "{length}");
    assert_eq!(lines(&answers(&["embed", TALES, "--cpu"], &format!("{bear}\n{rain}\n"))), given);
    let long = lines(&succeeds(&["embed", TALES, rain, "--cpu", "--no-normalize", "--pooling", "mean"]));
    assert!(vector(&long[0]).iter().map(|x| x * x).sum::<f64>() > 1.5 && long[0]["tokens"] == given[1]["tokens"]);
    fails(&["embed", TALES, bear, "", "--cpu"], "text 1 is empty");
    fails(&["embed", TALES, &"word ".repeat(600), "--cpu"], "there is room for 512");
    fails(&["embed", TALES, bear, "--pooling", "max"], "max");
}

#[test]
fn perplexity_is_the_figure_of_the_readme() {
    let score = json(&["perplexity", TALES, HELDOUT, "--window", "255", "--cpu"]);
    let perplexity = score["perplexity"].as_f64().unwrap();
    assert!((perplexity - 19.03).abs() < 0.03 && score["tokens"] == 934, "{score}");
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let words = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("19.03 on the CPU"), "the README claims another figure");
    fails(&["perplexity", TALES, HELDOUT, "--window", "512"], "--window 512");
    fails(&["perplexity", TALES, "no such text"], "no such text");
}

/// Files of the program may have a megabyte here: what is longer fails half-way, as on a disk that is full.
#[cfg(unix)]
#[test]
fn where_there_is_no_room_the_model_that_was_there_stays() {
    let directory = Directory::new("full");
    let packed = directory.path("packed");
    let limited = |arguments: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; ulimit -f 2048; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_bitnet")]).args(arguments);
        let output = command.output().unwrap();
        let error = errors(&output);
        assert!(!output.status.success() && error.contains("error: ") && !error.contains("panicked"), "{error}");
    };
    limited(&["quantize", TALES, &packed]);
    assert_eq!(fs::read_dir(&packed).unwrap().count(), 0, "nothing is left");
    succeeds(&["quantize", TALES, &packed]);
    let files = || {
        let mut files: Vec<_> = fs::read_dir(&packed).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|file| (fs::read(&file).unwrap(), file)).collect::<Vec<_>>()
    };
    let before = files();
    limited(&["quantize", TALES, &packed, "--force"]);
    assert!(files() == before, "what was there stays");
    let native = directory.path("native.safetensors");
    limited(&["quantize", TALES, &native, "--native"]);
    assert!(!fs::exists(&native).unwrap(), "nothing is there");
}

#[test]
fn quantize_packs_what_info_and_run_read() {
    let directory = Directory::new("quantize");
    // The shipped model is packed already: packing it again changes no code.
    let packed = directory.path("packed");
    let object = json(&["quantize", TALES, &packed]);
    assert_eq!(object["tensors"].as_array().unwrap().len(), 90);
    let info = json(&["info", &packed]);
    assert_eq!((&info["problems"], &info["checked"]), (&Value::Array(vec![]), &Value::Bool(true)));
    assert_eq!((&info["config"]["layers"], &info["tokenizer"]["bos"]), (&8.into(), &2046.into()));
    let bytes: u64 = info["tensors"].as_array().unwrap().iter().map(|tensor| tensor["bytes"].as_u64().unwrap()).sum();
    assert_eq!(Some(bytes), object["bytes_after"].as_u64());
    let greedy = |model: &str| json(&["run", model, "The bear", "--greedy", "--max-tokens", "12", "--cpu"])["ids"].clone();
    assert_eq!(greedy(&packed), greedy(TALES));
    // The tokenizer goes with it.
    let gguf = directory.path("model.gguf");
    json(&["quantize", TALES, &gguf, "--format", "gguf-tq2_0"]);
    assert_eq!((greedy(&gguf), &json(&["info", &gguf])["problems"]), (greedy(TALES), &Value::Array(vec![])));
    fails(&["quantize", TALES, &gguf, "--format", "gguf-q2_0"], "exists already");
    succeeds(&["quantize", TALES, &gguf, "--format", "gguf-q2_0", "--force"]);
    assert_eq!(greedy(&gguf), greedy(TALES));
    fails(&["quantize", TALES, &packed], "has a model already");
    assert!(succeeds(&["quantize", TALES, &packed, "--force"]).contains("times smaller"));
}

#[test]
fn a_native_container_is_a_model_as_others_are() {
    let directory = Directory::new("native");
    let greedy = |model: &str| json(&["run", model, "The bear", "--greedy", "--max-tokens", "12", "--cpu"])["ids"].clone();
    let (gguf, native, again) = (directory.path("model.gguf"), directory.path("new/native"), directory.path("again"));
    let bytes = json(&["quantize", TALES, &native, "--native"])["bytes"].as_u64().unwrap();
    assert_eq!(fs::metadata(&native).unwrap().len(), bytes);
    assert_eq!(greedy(&native), greedy(TALES));
    let info = json(&["info", &native]);
    assert_eq!(
        (&info["format"], &info["problems"], &info["config"]["layers"]),
        (&"native container".into(), &Value::Array(vec![]), &8.into())
    );
    assert_eq!(json(&["info", TALES])["format"], "directory");
    let text = succeeds(&["info", &native]);
    assert!(text.contains("format        native container") && text.contains("model.layers.*.mlp.gate_proj+up_proj.codes"), "{text}");
    // Of a GGUF file, with its tokenizer, and of a container.
    succeeds(&["quantize", TALES, &gguf, "--format", "gguf-q2_0"]);
    assert_eq!(json(&["info", &gguf])["format"], "GGUF file");
    assert!(succeeds(&["quantize", &gguf, &again, "--native"]).ends_with("MB\n"));
    assert_eq!(greedy(&again), greedy(TALES));
    succeeds(&["quantize", &native, &again, "--native", "--int8-head", "--force"]);
    assert!(fs::metadata(&again).unwrap().len() + 400_000 < bytes, "the head has half of its bytes");
    assert_eq!(json(&["info", &again])["problems"], Value::Array(vec![]));
    fails(&["quantize", TALES, &native, "--native"], "exists already");
    fails(&["quantize", TALES, &native, "--int8-head", "--force"], "--native");
    fails(&["quantize", TALES, &native, "--native", "--format", "gguf-q2_0"], "cannot be used with");
    fails(&["quantize", "no/such/model", &native, "--native"], "no/such/model");
    fails(&["run", &format!("{TALES}/model.safetensors"), "a"], "the directory is needed");
}

#[test]
fn info_says_what_is_wrong() {
    let directory = Directory::new("info");
    let text = succeeds(&["info", TALES]);
    assert!(text.contains("all weights can be loaded") && text.contains("model.layers.*.mlp.down_proj.weight"), "{text}");
    // An architecture that is not supported still shows its tensors.
    let other = directory.model("config.json", |bytes| String::from_utf8_lossy(bytes).replace("\"bitnet\"", "\"mamba\"").into_bytes());
    let info = json(&["info", &other]);
    assert!(info["problems"][0].as_str().unwrap().contains("model_type `mamba`"), "{}", info["problems"]);
    assert_eq!((info["tensors"].as_array().unwrap().len(), &info["config"]), (146, &Value::Null));
    // A tensor that is not there.
    let lacking =
        directory.model("model.safetensors", |bytes| replaced(bytes, b"layers.3.mlp.up_proj.weight\"", b"layers.3.mlp.xx_proj.weight\""));
    let problems = json(&["info", &lacking])["problems"].clone();
    assert!(problems.as_array().unwrap().len() == 1 && problems[0].as_str().unwrap().contains("layers.3.mlp.up_proj"), "{problems}");
    assert_eq!(json(&["info", &lacking, "--quick"])["problems"], Value::Array(vec![]));
    let gguf = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/gguf/llama.gguf");
    let info = json(&["info", gguf]);
    assert_eq!((&info["tensors"][0]["type"], &info["problems"]), (&"Q2_0".into(), &Value::Array(vec![])));
    // Heads that no kernel takes.
    let wide = directory.model("config.json", |bytes| String::from_utf8_lossy(bytes).replacen('{', "{\"head_dim\": 320,", 1).into_bytes());
    assert!(json(&["info", &wide])["problems"][0].as_str().unwrap().contains("320"));
    let nothing = Directory::new("nothing");
    fails(&["info", &nothing.path("")], "config.json");
    fails(&["info", "no/such/model"], "no/such/model");
    fails(&["info", HELDOUT], "is not a model");
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

/// Programs read these: figures of a step, and of each kernel in it, with their units.
fn check_keys(bench: &Value, on_gpu: bool, profiled: bool) {
    let positive = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
    let (decode, prefill) = (&bench["decode"][0], &bench["prefill"][0]);
    assert!(decode["context"] == 0 && positive(&decode["tokens_per_second"]) && positive(&decode["bytes_per_token"]), "{bench}");
    assert!(prefill["tokens"] == 16 && positive(&prefill["tokens_per_second"]) && positive(&prefill["seconds"]), "{bench}");
    assert_eq!(bench["gpu_bytes"].is_number(), on_gpu, "{bench}");
    for key in ["dispatches_per_token", "gpu_us_per_token", "host_us_per_token", "arrival_us_per_token"] {
        assert_eq!(positive(&bench[key]), profiled, "{key}: {bench}");
    }
    let kernels = bench["kernels"].as_array().map_or(&[][..], Vec::as_slice);
    assert!(kernels.iter().all(|kernel| kernel["name"].is_string() && kernel["us"].is_number()), "{bench}");
    // All of a step's weights are bound to some kernel, and a rate is of the bytes and the time beside it.
    let of = |kernel: &Value, key: &str| kernel[key].as_f64();
    let rated = |kernel: &&Value| of(kernel, "us").is_some_and(|us| us > 0.0);
    for kernel in kernels.iter().filter(rated) {
        let rate = of(kernel, "bytes").unwrap() / (of(kernel, "us").unwrap() * 1e-6);
        let share = rate / of(bench, "roof_bytes_per_second").unwrap();
        let is = |key: &str, wanted: f64| of(kernel, key).is_some_and(|value| (value / wanted - 1.0).abs() < 1e-9);
        assert!(is("bytes_per_second", rate) && is("share_of_roof", share), "{kernel}");
    }
    let bound: f64 = kernels.iter().map(|kernel| of(kernel, "bytes").unwrap()).sum();
    assert!(!profiled || bound >= of(bench, "weight_bytes_per_token").unwrap(), "{bound} bytes bound: {bench}");
    let dispatches: u64 = kernels.iter().map(|kernel| kernel["count"].as_u64().unwrap()).sum();
    assert_eq!(dispatches, bench["dispatches_per_token"].as_u64().unwrap_or(0), "{bench}");
}

#[test]
fn bench_and_adapters_give_figures() {
    let small = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/odd");
    let config = format!("{small}/config.json");
    let float_activations = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/qwen3/config.json");
    let directory = Directory::new("bench");
    let (trace, cache) = (directory.path("trace"), directory.path("cache"));
    let more = ["--profile", "--trace", &trace, "--cache", &cache];
    for model in [&["--config", &config][..], &["--config", float_activations], &[small]] {
        for device in [&["--cpu"][..], &["--gpu"]] {
            let profiled = (model, device) == (&[small][..], &["--gpu"][..]);
            let arguments = [
                &["bench"][..],
                model,
                device,
                &["--tokens", "4", "--prefill", "16,9999", "--contexts", "0,9999", "--sequences", "3", "--speculate"],
                if profiled { &more[..] } else { &[] },
            ]
            .concat();
            let bench = json(&arguments);
            assert_eq!(bench["kernels"].is_array(), profiled, "{bench}");
            assert_eq!((bench["prefill"].as_array().unwrap().len(), bench["decode"].as_array().unwrap().len()), (1, 1), "{bench}");
            assert!(
                bench["decode"][0]["tokens_per_second"].as_f64().unwrap() > 0.0
                    && bench["weight_bytes_per_token"].as_u64().unwrap() > 20_000,
                "{bench}"
            );
            assert_eq!(bench["roof_bytes_per_second"].is_number(), device == ["--gpu"], "{bench}");
            assert!(bench["speculation"][0]["tokens_per_second"].as_f64().unwrap() > 0.0, "{bench}");
            check_keys(&bench, device == ["--gpu"], profiled);
            let batch = &bench["batches"][0];
            assert!(batch["sequences"] == 3 && batch["tokens_per_second"].as_f64().unwrap() > 0.0, "{bench}");
        }
    }
    let traced: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    let submissions = |name: &str| {
        let is = |event: &&Value| event["cat"] == "submission" && event["name"] == name && event["ph"] == "b";
        traced["traceEvents"].as_array().unwrap().iter().filter(is).count()
    };
    assert!(submissions("prefill") > 0 && submissions("decode") == 8, "{traced}");
    fails(&["bench", "--trace", "file"], "--profile");
    fails(&["run", TALES, "Once", "--cpu", "--cache", "folder"], "cannot be used with");
    fails(&["bench", "--tokens", "0"], "--tokens 0");
    fails(&["bench", "--prefill", "0"], "--prefill 0");
    fails(&["bench", "--sequences", "0"], "--sequences 0");
    fails(&["bench", "--config", HELDOUT], "heldout_own.txt");
    fails(&["bench", "--shape", "bonsai"], "ternary-bonsai-1.7b");
    fails(&["bench", "--config", &config, "--shape", "ternary-bonsai-8b"], "cannot be used with");
    let adapters = json(&["adapters"]);
    let adapters = adapters.as_array().unwrap();
    assert!(adapters.iter().enumerate().all(|(at, adapter)| adapter["index"] == at && adapter["kind"].is_string()), "{adapters:?}");
    let chosen: Vec<_> = adapters.iter().filter(|adapter| adapter["chosen"] == true).collect();
    assert!(chosen.len() == 1 && chosen[0]["usable"] == true && chosen[0]["score"].as_u64().unwrap() > 0, "{adapters:?}");
    assert!(chosen[0]["chosen_why"].is_string(), "{adapters:?}");
    // What the system does not say is null, and what it says has a source.
    let health = |adapter: &Value| adapter["health"].as_object().unwrap().values().all(|said| said.is_null() || said["source"].is_string());
    assert!(
        adapters.iter().all(health) && (chosen[0]["software"] == false || chosen[0]["health"]["power_watts"].is_null()),
        "{adapters:?}"
    );
    // No other driver gives what is kept.
    assert!(chosen[0]["backend"] != "Vulkan" || fs::read_dir(cache).unwrap().count() > 10);
    let text = succeeds(&["adapters"]);
    assert!(text.contains("score") && text.contains("; chosen: "), "{text}");
}

/// The weights of this model cannot be loaded, so that whoever names the option has not tried to.
#[test]
fn options_are_checked_before_the_weights_are_read() {
    let directory = Directory::new("options");
    let broken = directory.model("model.safetensors", |bytes| replaced(bytes, b"model.norm.weight\"", b"model.morn.weight\""));
    fails(&["run", &broken, "x", "--cpu"], "model.norm");
    for (arguments, wanted) in [
        (&["run", "x", "--temperature", "nan"][..], "temperature"),
        (&["run", "x", "--top-p", "1.5"], "top_p"),
        (&["run", "x", "--repetition-penalty", "0"], "repetition_penalty"),
        (&["run", "x", "--stop", ""], "stop string"),
        (&["run", "x", "--logit-bias", "2048=1"], "token 2048"),
        (&["run", "x", "--logit-bias", "5=nan"], "a logit bias of NaN for token 5"),
        (&["run", "x", "--logit-bias", "5"], "--logit-bias"),
        (&["chat", "--logit-bias", "king=1"], "\"king\" is no token's id"),
        (&["run", "x", "--logit-bias", "5=much"], "\"much\" is no number"),
        (&["run", "--ids", "5,2048"], "token 2048"),
        (&["run", "x", "--ids", "5"], "one of them"),
        (&["run", "x", "--session", "no/where/s"], "no/where"),
        (&["perplexity", HELDOUT, "--window", "0"], "--window 0"),
        (&["chat", "--context", "0"], "--context 0"),
        (&["chat", "--context", "5", "--system", "- a long instruction"], "--context 5"),
        (&["run", "x", "--session", HELDOUT], "is not a saved session"),
        (&["chat", "--min-p", "7"], "min_p"),
        (&["run", "x", "--speculate", "ngram", "--draft-tokens", "0"], "drafts of 0 tokens"),
        (&["chat", "--speculate", TALES, "--draft-tokens", "16"], "drafts of 16 tokens"),
        (&["run", "x", "--draft-tokens", "4"], "--speculate"),
    ] {
        fails(&[&arguments[..1], &[&broken], &arguments[1..], &["--cpu"]].concat(), wanted);
    }
    let long = "word ".repeat(600);
    fails(&["run", &broken, &long, "--cpu"], "positions are needed");
}

/// Who reads the output may stop reading.
#[test]
fn a_closed_output_is_no_error() {
    let mut child = bitnet(&["run", TALES, "Once", "--cpu", "--ignore-eos", "--max-tokens", "400"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && !errors(&output).contains("panicked"), "{}", errors(&output));
    // Nor is one of what is said beside it.
    let arguments = ["run", TALES, "Once", "--cpu", "--greedy", "--max-tokens", "3"];
    let mut child = bitnet(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"Once"), "{:?}", output.status);
}

/// A full disk, a pipe in place of a file, names that would command a terminal, and devices that there are not.
#[test]
fn odd_surroundings_are_errors() {
    if let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") {
        let output = bitnet(&["run", TALES, "Once", "--cpu", "--max-tokens", "3"]).stdout(full).output().unwrap();
        assert!(!output.status.success() && errors(&output).contains("No space left"), "{}", errors(&output));
    }
    let directory = Directory::new("odd");
    #[cfg(unix)]
    {
        let pipes = directory.0.join("pipes");
        fs::create_dir_all(&pipes).unwrap();
        assert!(Command::new("mkfifo").arg(pipes.join("config.json")).status().unwrap().success());
        fails(&["run", &pipes.display().to_string(), "x", "--cpu"], "is not a file");
        let broken = directory.model("", <[u8]>::to_vec);
        fs::remove_file(directory.path("tokenizer.json")).unwrap();
        assert!(Command::new("mkfifo").arg(directory.path("tokenizer.json")).status().unwrap().success());
        fails(&["run", &broken, "x", "--cpu"], "is not a file");
        fs::remove_file(directory.path("tokenizer.json")).unwrap();
    }
    // JSON has the escape character as \u001b; 27 bytes either way.
    let commanding = directory.model("model.safetensors", |bytes| replaced(bytes, b"model.norm.weight\"", b"model\\u001b[2J.no\""));
    let shown = succeeds(&["info", &commanding]);
    assert!(!shown.contains('\u{1b}') && shown.contains("u{1b}[2J"), "{shown}");
    for (variable, value) in [("WGPU_BACKEND", "xyzzy"), ("WGPU_ADAPTER_NAME", "no such adapter")] {
        let output = bitnet(&["run", TALES, "x", "--max-tokens", "1"]).env(variable, value).output().unwrap();
        assert!(!output.status.success() && errors(&output).contains(value), "{variable}: {}", errors(&output));
    }
    fails(&["run", TALES, "x", "--language", "msl", "--cpu"], "cannot be used with");
    fails(&["run", TALES, "x", "--adapter", "no such adapter"], "no such adapter");
    fails(&["run", TALES, "x", "--adapter", "1000"], "adapter 1000 was asked for; there are");
    fails(&["run", TALES, "x", "--adapter", "0", "--cpu"], "cannot be used with");
    fails(&["run", TALES, "x", "--split", "3,5"], "--adapter");
    fails(&["run", TALES, "x", "--cpu", "--threads", "0"], "threads: 0; a model computes on 1 to 1024");
    fails(&["run", TALES, "x", "--gpu", "--threads", "2"], "cannot be used with");
    let split = |layers| ["run", TALES, "x", "--adapter", "0", "--adapter", "0", "--split", layers];
    fails(&split("3,6"), "layers [3, 6]; the model has 8");
    fails(&split("8"), "numbers of layers for 1 contexts, of which there are 2");
    fails(&[&split("4,4")[..], &["--offload", "2"]].concat(), "not both");
    fails(&["bench", TALES, "--adapter", "0", "--adapter", "0", "--profile"], "on one GPU");
}

#[test]
fn the_authors_recommendations_are_followed() {
    let directory = Directory::new("authors");
    let with = |generation: &str| {
        let model = directory.model("", <[u8]>::to_vec);
        fs::write(directory.path("generation_config.json"), generation).unwrap();
        model
    };
    let ids = |model: &str, more: &[&str]| json(&[&["run", model, "Once upon a time", "--cpu"], more].concat())["ids"].clone();
    let greedy = ids(TALES, &["--greedy", "--max-tokens", "12"]);
    let sampled = ids(TALES, &["--temperature", "0.7", "--top-k", "40", "--max-tokens", "12"]);
    assert_ne!(greedy, sampled);
    let twelve = ["--max-tokens", "12"];
    assert_eq!(ids(&with(r#"{"do_sample": false}"#), &twelve), greedy);
    assert_eq!(ids(&with(r#"{"do_sample": true, "top_k": 1}"#), &twelve), greedy);
    assert_eq!(ids(&with("{}"), &twelve), sampled);
    assert_eq!(ids(&with(r#"{"do_sample": true, "temperature": 0.7, "top_k": 40}"#), &twelve), sampled);
    // Lengths: what is asked for counts.
    assert_eq!(ids(&with(r#"{"do_sample": false, "max_length": 9}"#), &[]).as_array().unwrap().len(), 3);
    assert_eq!(ids(&with(r#"{"do_sample": false, "max_length": 9}"#), &twelve), greedy);
    // What the vocabulary has not cannot be forbidden.
    assert_eq!(ids(&with(r#"{"do_sample": false, "suppress_tokens": [5000], "bad_words_ids": [[7, 5000]]}"#), &twelve), greedy);
}

/// A server with what `bitnet run` writes, until a signal ends it.
#[test]
#[cfg(unix)]
fn serve_answers_what_run_writes() {
    let options = ["--cpu", "--temperature", "0.9", "--seed", "3"];
    let mut child = bitnet(&[&["serve", TALES, "--port", "0", "--json", "--grace", "1"][..], &options].concat());
    let mut child = child.env("BITNET_API_KEY", "sesame").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&ready["model"], &ready["slots"], &ready["context"]), (&"tales-22m".into(), &8.into(), &512.into()));
    let address = ready["address"].as_str().unwrap().strip_prefix("http://").unwrap();
    assert!(address.starts_with("127.0.0.1:"));
    let body = r#"{"prompt": "Once upon a time", "max_tokens": 12, "seed": 3}"#;
    let post = |key: &str| {
        let head = format!("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(format!("{head}Authorization: Bearer {key}\r\n\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), serde_json::from_str::<Value>(body).unwrap())
    };
    let (status, answer) = post("sesame");
    let run = json(&[&["run", TALES, "Once upon a time", "--max-tokens", "12"][..], &options].concat());
    assert_eq!((&*status, &answer["choices"][0]["text"]), ("200", &run["text"]));
    assert_eq!(post("open").0, "401");
    // The address is taken.
    let port = address.rsplit(':').next().unwrap();
    fails(&["serve", TALES, "--cpu", "--port", port], port);
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && errors(&output).contains("ended"), "{output:?}");
}

#[test]
fn serve_refuses_what_cannot_be_served() {
    fails(&["serve", TALES, "--cpu", "--port", "0", "--slots", "0"], "--slots 0");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--context", "100000"], "--context 100000");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--api-key", ""], "API key");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--api-key", "a\nb"], "API key");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--temperature=-1"], "temperature");
    fails(&["serve", TALES, "--cpu", "--port", "0", "--speculate", "ngram"], "--speculate");
    fails(&["serve", TALES, "--cpu", "--host", "no such host"], "no such host");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    fails(&["serve", "no/such/model", "--port", &port], "no/such/model");
}
