//! `bitnet info`

use crate::{Directory, HELDOUT, TALES, fails, json, replaced, succeeds};
use serde_json::Value;

#[test]
fn info_says_what_is_wrong() {
    let directory = Directory::new("info");
    let text = succeeds(&["info", TALES]);
    assert!(
        text.contains("all weights can be loaded")
            && text.contains("model.layers.*.mlp.down_proj.weight"),
        "{text}"
    );
    // An architecture that is not supported still shows its tensors.
    let other = directory.model("config.json", |bytes| {
        String::from_utf8_lossy(bytes).replace("\"bitnet\"", "\"mamba\"").into_bytes()
    });
    let info = json(&["info", &other]);
    assert!(
        info["problems"][0].as_str().unwrap().contains("model_type `mamba`"),
        "{}",
        info["problems"]
    );
    assert_eq!((info["tensors"].as_array().unwrap().len(), &info["config"]), (146, &Value::Null));
    // A tensor that is not there.
    let lacking = directory.model("model.safetensors", |bytes| {
        replaced(bytes, b"layers.3.mlp.up_proj.weight\"", b"layers.3.mlp.xx_proj.weight\"")
    });
    let problems = json(&["info", &lacking])["problems"].clone();
    assert!(
        problems.as_array().unwrap().len() == 1
            && problems[0].as_str().unwrap().contains("layers.3.mlp.up_proj"),
        "{problems}"
    );
    assert_eq!(json(&["info", &lacking, "--quick"])["problems"], Value::Array(vec![]));
    let gguf = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/gguf/llama.gguf");
    let info = json(&["info", gguf]);
    assert_eq!(
        (&info["tensors"][0]["type"], &info["problems"]),
        (&"Q2_0".into(), &Value::Array(vec![]))
    );
    // Heads that no kernel takes.
    let wide = directory.model("config.json", |bytes| {
        String::from_utf8_lossy(bytes).replacen('{', "{\"head_dim\": 320,", 1).into_bytes()
    });
    assert!(json(&["info", &wide])["problems"][0].as_str().unwrap().contains("320"));
    let nothing = Directory::new("nothing");
    fails(&["info", &nothing.path("")], "config.json");
    fails(&["info", "no/such/model"], "no/such/model");
    fails(&["info", HELDOUT], "is not a model");
}
