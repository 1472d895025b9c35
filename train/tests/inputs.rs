//! Text, configurations and settings that are refused. No GPU is needed.

use bitnet_train::{
    Corpus, Distillation, Error, LinearMode, Settings, Source, Teacher, end_of_text,
};
use bitnet_wgpu::model::Tokenizer;
use serde_json::{Value, json};
use std::{fs, path::Path};

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tales-22m");
const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models");

fn tokenizer() -> Tokenizer {
    Tokenizer::from_directory(TALES).unwrap()
}

/// Reads a file of text with this name and these contents.
fn corpus(name: &str, contents: &[u8]) -> Result<Corpus, Error> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    fs::write(&file, contents).unwrap();
    Corpus::read(&[file], &tokenizer(), 2047, 2)
}

#[test]
fn bad_lines_are_named() {
    let good = r#"{"text": "Once upon a time there was a king."}"#;
    for (line, expected) in [
        ("{\"text\": \"no end", "is not JSON"),
        ("{\"txt\": \"another name\"}", "has no field `text` or `messages`"),
        ("{\"text\": 7}", "`text` is not a string"),
        ("[]", "has no field `text`"),
    ] {
        let error =
            corpus("a.jsonl", format!("{good}\n\n{line}\n{good}\n").as_bytes()).unwrap_err();
        assert!(matches!(error, Error::Data { line: Some(3), .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("a.jsonl:3: ") && text.contains(expected), "{text}");
    }
    let error = corpus("a.txt", b"one\ntwo\n\xff\n").unwrap_err();
    assert!(matches!(error, Error::Data { line: Some(3), .. }), "{error}");
    let error = corpus("a.csv", b"one").unwrap_err();
    assert!(error.to_string().ends_with("neither a folder nor a file of .txt or .jsonl"));
    assert!(matches!(corpus("a.txt", b""), Err(Error::TooShort { .. })));
    let missing = Corpus::read(&["no/such.txt".into()], &tokenizer(), 2047, 2);
    assert!(matches!(missing, Err(Error::Library(_))));
    let empty = tempfile::tempdir().unwrap();
    let error = Corpus::read(&[empty.path().into()], &tokenizer(), 2047, 2).unwrap_err();
    assert!(error.to_string().ends_with("has no files of .txt or .jsonl"), "{error}");
}

/// A line with these messages.
fn messages(messages: &[(&str, &str)]) -> Value {
    let all = messages.iter().map(|(role, content)| json!({"role": role, "content": content}));
    json!({"messages": all.collect::<Vec<_>>()})
}

#[test]
fn bad_conversations_are_named() {
    let good = messages(&[("user", "Hello"), ("assistant", "Hi")]);
    let with =
        |message: Value| json!({"messages": [{"role": "user", "content": "Hello"}, message]});
    let answer = |field: &str, value: Value| {
        let mut message = json!({"role": "assistant", "content": "Hi"});
        message[field] = value;
        with(message)
    };
    let cases = [
        (json!({"messages": {}}), "`messages` is not an array"),
        (json!({"messages": []}), "has no message of the role `assistant`"),
        (json!({"messages": [], "text": ""}), "has both `text` and `messages`"),
        (messages(&[("user", "Hello")]), "has no message of the role `assistant`"),
        (with(json!({"content": "Hi"})), "message 2: has no string `role`"),
        (answer("role", json!("gpt")), "message 2: the role `gpt` is not known; system, "),
        (answer("content", json!(" \n")), "message 2: the answer is empty"),
        (answer("content", json!(null)), "message 2: has no `content`"),
        (answer("content", json!([{"type": "image_url"}])), "message 2: has no `content`"),
        (answer("tool_calls", json!([{}])), "message 2: has `tool_calls`"),
        (answer("weight", json!(0.5)), "message 2: `weight` is neither 0 nor 1"),
        (answer("weight", json!(0)), "has no message of the role `assistant` to learn"),
    ];
    for (line, expected) in cases {
        let error = corpus("a.jsonl", format!("{good}\n{line}\n").as_bytes()).unwrap_err();
        assert!(matches!(error, Error::Data { line: Some(2), .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("a.jsonl:2: {expected}")), "{text}");
    }
    let mut with_tools = good;
    with_tools["tools"] = json!([{"type": "function"}]);
    let error = corpus("a.jsonl", with_tools.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("a.jsonl:1: has `tools`"), "{error}");
}

/// Reads conversations by a chat template.
fn chats(template: &str, lines: &[Value], context: usize) -> Result<Corpus, Error> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chats.jsonl");
    fs::write(&file, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    Corpus::read(&[file], &tokenizer().with_chat_template(template), 2047, context)
}

/// The text that is learned of a window.
fn learned(corpus: &Corpus, window: usize) -> String {
    let ids = corpus.window(window).iter().zip(corpus.scored(window).unwrap());
    let ids: Vec<u32> = ids.filter(|(_, scored)| **scored).map(|(id, _)| *id).collect();
    tokenizer().decode_with_special(&ids).unwrap()
}

const ROLES: &str = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]\n{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]\n{% endif %}";
/// With an end of each turn.
const ENDS: &str = "{% for m in messages %}<{{ m.role }}> {{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}";

#[test]
fn only_answers_are_learned() {
    let two = messages(&[
        ("system", "Be kind."),
        ("user", "Who is there?"),
        ("assistant", "The king."),
        ("user", "Where?"),
        ("assistant", "In the garden."),
        ("user", "Thanks"),
    ]);
    let end = "<|end_of_text|>";
    let corpus = chats(ENDS, std::slice::from_ref(&two), 100).unwrap();
    // A space before an answer is one token with its first word.
    assert_eq!(learned(&corpus, 0), format!(" The king.{end} In the garden.{end}"));
    let last = corpus.window(0).last().copied();
    assert_eq!((last, corpus.window(0).len()), (Some(2047), corpus.ids().len()));
    // Without ends in the template, the last answer gets one, if it is the last message.
    let corpus = chats(ROLES, std::slice::from_ref(&two), 100).unwrap();
    assert_eq!(learned(&corpus, 0), "The king.\nIn the garden.\n");
    let one = messages(&[("user", "Who?"), ("assistant", "The king.")]);
    let corpus = chats(ROLES, &[one.clone(), two], 100).unwrap();
    assert_eq!(learned(&corpus, 0), format!("The king.\n{end}"));
    assert_eq!((corpus.windows(), corpus.scored(0).unwrap()[0]), (2, false));
    // A prompt is encoded as inference encodes it.
    let prompt = [bitnet_wgpu::model::Message::new("user", "Who?")];
    let prompt = tokenizer().with_chat_template(ROLES).chat(&prompt).unwrap();
    assert!(corpus.window(0).starts_with(&prompt));
    let first = corpus.scored(0).unwrap().iter().position(|scored| *scored);
    assert_eq!(first, Some(prompt.len()));
    // A name of a special token in a message is text.
    let hostile = messages(&[("user", "Who?"), ("assistant", "A <|end_of_text|> B")]);
    let corpus = chats(ROLES, &[hostile], 100).unwrap();
    assert_eq!(corpus.window(0).iter().filter(|&&id| id == 2047).count(), 1);
    let mut unweighted = one;
    unweighted["messages"].as_array_mut().unwrap().extend([
        json!({"role": "user", "content": "And?"}),
        json!({"role": "assistant", "content": "No.", "weight": 0}),
    ]);
    assert_eq!(learned(&chats(ROLES, &[unweighted], 100).unwrap(), 0), "The king.\n");
}

/// As Qwen3's template does, which writes `<think>` before the last answer only.
#[test]
fn templates_with_another_last_answer_work() {
    let template = "{% for m in messages %}<{{ m.role }}>\n{% if m.role == 'assistant' and loop.last %}[ ]\n{% endif %}{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}";
    let two =
        [("user", "Who?"), ("assistant", "The king."), ("user", "Where?"), ("assistant", "Here.")];
    let corpus = chats(template, &[messages(&two)], 100).unwrap();
    let end = "<|end_of_text|>";
    assert_eq!(learned(&corpus, 0), format!("The king.{end}[ ]\nHere.{end}"));
}

/// A template that does not know a role would lose what is said.
#[test]
fn messages_that_templates_leave_out_are_named() {
    let template = "{% for m in messages %}{% if m.role != 'developer' %}{{ m.content }}\n{% endif %}{% endfor %}";
    let three =
        messages(&[("developer", "Be kind."), ("user", "Who?"), ("assistant", "The king.")]);
    let error = chats(template, &[three], 100).unwrap_err().to_string();
    assert!(error.contains(":1: message 1: the chat template leaves it out"), "{error}");
    let mut thinks = messages(&[("user", "Who?"), ("assistant", "The king.")]);
    thinks["messages"][1]["reasoning_content"] = json!("Hm.");
    let error = chats(ROLES, &[thinks.clone()], 100).unwrap_err().to_string();
    assert!(error.contains("message 2: has `reasoning_content`"), "{error}");
    // As a table with empty columns has them.
    thinks["messages"][1]["reasoning_content"] = json!(null);
    thinks["messages"][1]["weight"] = json!(null);
    thinks["text"] = json!(null);
    assert_eq!(chats(ROLES, &[thinks], 100).unwrap().windows(), 1);
}

#[test]
fn templates_that_fail_are_named() {
    let good = messages(&[("user", "Who?"), ("assistant", "The king.")]);
    let two = messages(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]);
    for (template, line, expected) in [
        ("{{ raise_exception('no system') }}", &good, "no system"),
        ("{% for", &good, "chat template"),
        ("{{ messages[0].content }}", &good, "writes no answer"),
        (
            "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
            &two,
            "message 2: the chat template writes another text",
        ),
    ] {
        let error = chats(template, std::slice::from_ref(line), 100).unwrap_err();
        assert!(matches!(error, Error::Data { line: Some(1), .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn long_conversations_are_cut_and_counted() {
    let long = messages(&[("user", "Who?"), ("assistant", &"The king. ".repeat(20))]);
    let question = messages(&[("user", &"Who? ".repeat(40)), ("assistant", "The king.")]);
    let short = messages(&[("user", "Who?"), ("assistant", "I.")]);
    let corpus = chats(ROLES, &[long, question.clone(), short], 20).unwrap();
    let report = corpus.chat_report();
    assert_eq!((report.conversations, report.cut, report.left_out), (3, 1, 1));
    assert_eq!((corpus.windows(), corpus.window(0).len()), (2, 21));
    assert!(corpus.window(1).len() < 21);
    let (train, held) = corpus.clone().split(1).unwrap();
    assert_eq!((train.window(0), train.scored(0)), (corpus.window(0), corpus.scored(0)));
    assert_eq!((held.window(0), held.scored(0)), (corpus.window(1), corpus.scored(1)));
    assert!(matches!(corpus.split(2), Err(Error::Setting { .. })));
    let error = chats(ROLES, &[question], 20).unwrap_err();
    assert!(error.to_string().starts_with("the context is 20; a longer one is needed"), "{error}");
}

/// Documents are windows before conversations.
#[test]
fn text_and_conversations_are_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let chat = messages(&[("user", "Who?"), ("assistant", "The king.")]);
    let text = json!({"text": "Once upon a time there was a king who had a daughter. ".repeat(5)});
    let file = folder.path().join("a.jsonl");
    fs::write(&file, format!("{chat}\n{text}\n{chat}\n")).unwrap();
    let corpus = Corpus::read(&[file], &tokenizer(), 2047, 12).unwrap();
    let texts = corpus.windows() - 2;
    assert!(texts >= 3 && corpus.scored(texts - 1).is_none() && corpus.scored(texts).is_some());
    let answers = |window| corpus.scored(window).unwrap().iter().filter(|scored| **scored).count();
    assert_eq!(corpus.learned(), 12 * texts + answers(texts) + answers(texts + 1));
    let (train, held) = corpus.clone().split(3).unwrap();
    assert_eq!((train.windows(), held.windows()), (texts - 1, 3));
    for window in 0..3 {
        assert_eq!(held.window(window), corpus.window(texts - 1 + window));
        assert_eq!(held.scored(window), corpus.scored(texts - 1 + window));
    }
}

#[test]
fn documents_are_joined_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("b");
    fs::create_dir(&inner).unwrap();
    fs::write(folder.path().join("c.jsonl"), "{\"text\": \"four\"}\n{\"text\": \"\"}\n").unwrap();
    fs::write(inner.join("d.txt"), "two\nthree").unwrap();
    fs::write(folder.path().join("a.txt"), "\u{feff}one").unwrap();
    fs::write(folder.path().join("notes.md"), "\u{0}").unwrap();
    let tokenizer = tokenizer();
    let expected: Vec<u32> = ["one", "two\nthree", "four"]
        .iter()
        .flat_map(|text| [vec![2046], tokenizer.encode_plain(text).unwrap(), vec![2047]].concat())
        .collect();
    let corpus = Corpus::read(&[folder.path().into()], &tokenizer, 2047, 2).unwrap();
    assert_eq!(corpus.ids(), expected);
}

fn source(json: &Value) -> Result<Source, Error> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    Source::from_config(folder.path())
}

fn llama() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 24, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
        "max_position_embeddings": 64, "eos_token_id": 2047,
    })
}

#[test]
fn hostile_configurations_are_refused() {
    for (key, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(1u64 << 40)),
        ("hidden_size", json!(-1)),
        ("num_hidden_layers", json!(1 << 30)),
        ("num_attention_heads", json!(0)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(7)),
        ("head_dim", json!(512)),
        ("vocab_size", json!(1 << 24)),
        ("rms_norm_eps", json!("small")),
        ("model_type", json!("gpt2")),
        ("model_type", json!(null)),
        ("rope_theta", json!(0)),
        ("attention_bias", json!(true)),
        ("num_local_experts", json!(8)),
    ] {
        let mut json = llama();
        json[key] = value;
        if key == "vocab_size" {
            json["hidden_size"] = json!(1 << 20);
        }
        let refused = source(&json).and_then(|source| source.parameters());
        assert!(refused.is_err(), "{key}: {json}");
    }
    for contents in ["", "[]", "{", "{\"model_type\": \"llama\"}"] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), contents).unwrap();
        assert!(matches!(Source::from_config(folder.path()), Err(Error::Library(_))));
    }
    assert!(matches!(Source::from_config("no/such/folder"), Err(Error::Library(_))));
}

#[test]
fn unsupported_steps_are_named() {
    for (model, expected) in [
        ("gemma3", "sliding window"),
        ("granite", "a scale of the embedding"),
        ("minicpm", "a scale of the embedding"),
        ("normed", "a norm of its own before every linear layer"),
    ] {
        let source = Source::from_config(Path::new(MODELS).join(model)).unwrap();
        let error = source.parameters().unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{model}: {error}");
        assert!(error.to_string().contains(expected), "{model}: {error}");
    }
    for model in ["llama", "qwen3", "online"] {
        let source = Source::from_config(Path::new(MODELS).join(model)).unwrap();
        assert!(source.parameters().unwrap() > 1000, "{model}");
    }
    // Embedding and head; of each layer, attention, the MLP and two norms; a norm.
    let small = source(&llama()).unwrap().parameters().unwrap();
    assert_eq!(small, 2 * 2048 * 24 + 2 * (2 * 24 * 24 + 2 * 12 * 24 + 3 * 24 * 44 + 2 * 24) + 24);
}

/// A change of settings that makes them impossible.
type Change = fn(&mut Settings);

#[test]
fn impossible_settings_are_named() {
    let changes: [(Change, &str); 14] = [
        (|s| s.steps = 0, "the number of steps is 0"),
        (|s| s.batch = 0, "the batch is 0"),
        (|s| s.batch = 1 << 40, "the batch is"),
        (|s| s.accumulation = 0, "the accumulation is 0"),
        (|s| s.context = 0, "the context is 0; 1 to 64 tokens"),
        (|s| s.context = 65, "the context is 65"),
        (|s| s.rate = 0.0, "the learning rate is 0"),
        (|s| s.rate = f32::NAN, "the learning rate is NaN"),
        (|s| s.final_rate = 2.0, "the final learning rate is 2"),
        (|s| s.warm_up = 11, "the warm-up is 11"),
        (|s| s.decay = -1.0, "the weight decay is -1"),
        (|s| s.betas.1 = 1.0, "beta 2 is 1"),
        (|s| s.clip = f32::INFINITY, "the gradient norm limit is inf"),
        (|s| s.most_skipped = 0, "the number of skipped steps is 0"),
    ];
    let source_of = source(&llama()).unwrap();
    let settings = Settings::new(10, 2, 8);
    settings.check(source_of.config()).unwrap();
    for (change, expected) in changes {
        let mut changed = settings.clone();
        change(&mut changed);
        let error = changed.check(source_of.config()).unwrap_err();
        assert!(matches!(error, Error::Setting { .. }), "{error}");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    let mut bitnet = llama();
    bitnet["model_type"] = "bitnet".into();
    let mut float = settings;
    float.linear = LinearMode::Float;
    let error = float.check(source(&bitnet).unwrap().config()).unwrap_err();
    assert!(error.to_string().starts_with("the activation type is float"), "{error}");
}

#[test]
fn small_vocabularies_are_refused() {
    let mut json = llama();
    let end =
        |json: &Value| end_of_text(&tokenizer(), source(json).unwrap().config(), Path::new(TALES));
    assert_eq!(end(&json).unwrap(), 2047);
    json["vocab_size"] = json!(2047);
    json["eos_token_id"] = json!(2);
    let error = end(&json).unwrap_err().to_string();
    assert!(error.starts_with("the tokenizer's vocabulary is 2048"), "{error}");
}

#[test]
fn the_learning_rate_warms_up_and_falls() {
    let mut settings = Settings::new(110, 1, 8);
    (settings.rate, settings.warm_up) = (1.0, 10);
    let rates = [1, 10, 60, 110].map(|step| settings.rate_at(step));
    for (rate, expected) in rates.into_iter().zip([0.1, 1.0, 0.55, 0.1]) {
        assert!((rate - expected).abs() < 1e-6, "{rate}, not {expected}");
    }
}

#[test]
fn teachers_that_do_not_fit_are_refused() {
    let open = |folder: &str, temperature, share| {
        let mut mix = Distillation::default();
        (mix.temperature, mix.share) = (temperature, share);
        Teacher::open(folder, mix)
    };
    for (temperature, share, expected) in [
        (0.0, 0.5, "the temperature is 0; 0.001 to 1000 is supported"),
        (f32::NAN, 0.5, "the temperature is NaN"),
        (1.0, -0.5, "the teacher's share is -0.5; 0 to 1 is supported"),
    ] {
        let error = open(TALES, temperature, share).err().unwrap();
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    let error = open(&format!("{MODELS}/gemma3"), 1.0, 1.0).err().unwrap();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");

    let teacher = open(TALES, 1.0, 1.0).unwrap();
    let mut student = teacher.config().clone();
    teacher.check(&student, student.context).unwrap();
    let longer = teacher.check(&student, student.context + 1).unwrap_err().to_string();
    assert!(longer.contains("has a context of ") && longer.ends_with("as a window has"));
    student.vocab = 1000;
    let error = teacher.check(&student, 8).unwrap_err();
    assert!(matches!(error, Error::Teacher { .. }), "{error}");
    let expected = "has a vocab_size of 2048, and the student one of 1000; the same one is needed";
    assert!(error.to_string().ends_with(expected), "{error}");
}

/// Two tokens in each other's place.
#[test]
fn tokenizers_of_students_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(TALES).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_some_and(|ending| ending == "json") {
            fs::copy(&entry, folder.path().join(entry.file_name().unwrap())).unwrap();
        }
    }
    let teacher = Teacher::open(TALES, Distillation::default()).unwrap();
    let own = || Tokenizer::from_directory(folder.path()).unwrap();
    teacher.check_tokenizer(&tokenizer(), &own()).unwrap();
    let file = folder.path().join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
    let names: Vec<String> = vocabulary.keys().skip(300).take(2).cloned().collect();
    let ids = [&names[0], &names[1]].map(|name| vocabulary[name].clone());
    vocabulary[&names[0]] = ids[1].clone();
    vocabulary[&names[1]] = ids[0].clone();
    fs::write(file, json.to_string()).unwrap();
    let error = teacher.check_tokenizer(&tokenizer(), &own()).unwrap_err();
    let expected = format!("has the token {} `", ids[0].as_u64().min(ids[1].as_u64()).unwrap());
    assert!(error.to_string().contains(&expected), "{error}");
}
