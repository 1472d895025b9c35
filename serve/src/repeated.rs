//! Fields of a request that its response repeats, in `/v1/responses`.

use crate::tools::MOST_TOOLS;
use serde_json::{Value, json};

/// Fields that are repeated as they are.
const AS_SENT: [&str; 10] = [
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "temperature",
    "tool_choice",
    "top_p",
    "user",
];

/// Fields of a request that its response repeats; none by default.
#[derive(Default)]
pub struct Repeated {
    /// The fields as JSON; may be empty.
    pub json: String,
    /// The longest of them.
    pub longest: String,
}

/// Returns what the response to a request repeats, with defaults where nothing was sent.
pub fn repeated(body: &Value) -> Repeated {
    let mut object = json!({
        "background": false, "conversation": null, "instructions": null, "max_output_tokens": null,
        "max_tool_calls": null, "metadata": {}, "parallel_tool_calls": true,
        "previous_response_id": null, "prompt": null, "prompt_cache_key": null,
        "reasoning": with_fields(json!({ "effort": null, "summary": null }), &body["reasoning"]),
        "safety_identifier": null, "service_tier": "default", "store": false, "temperature": null,
        "text": text(&body["text"]), "tool_choice": "auto", "tools": [], "top_logprobs": 0,
        "top_p": null, "truncation": "disabled", "user": null,
    });
    for field in AS_SENT.into_iter().filter(|field| !body[field].is_null()) {
        object[field] = body[field].clone();
    }
    // More are refused, and would take much memory here.
    let tools = body["tools"].as_array();
    if let Some(tools) = tools.filter(|tools| tools.len() <= MOST_TOOLS) {
        let tool =
            json!({ "type": "function", "description": null, "parameters": null, "strict": false });
        object["tools"] = tools.iter().map(|sent| with_fields(tool.clone(), sent)).collect();
    }
    let fields = object.as_object().into_iter().flatten();
    let longest = fields.max_by_key(|(_, value)| value.to_string().len());
    let longest = longest.map(|(field, _)| field.clone()).unwrap_or_default();
    Repeated { json: object.to_string(), longest }
}

fn text(sent: &Value) -> Value {
    let text = json!({ "format": { "type": "text" }, "verbosity": "medium" });
    let mut text = with_fields(text, sent);
    if text["format"]["type"] == "json_schema" {
        // It is held to, whatever was sent.
        text["format"]["strict"] = true.into();
    }
    text
}

/// Returns an object with the fields of another that are not null.
pub fn with_fields(mut object: Value, more: &Value) -> Value {
    for (field, value) in more.as_object().into_iter().flatten() {
        if !value.is_null() || object[field].is_null() {
            object[field] = value.clone();
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_tools_than_accepted_are_not_repeated() {
        let sent = |count: usize| json!({ "tools": vec![json!({ "name": "add" }); count] });
        let repeated =
            |count: usize| -> Value { serde_json::from_str(&repeated(&sent(count)).json).unwrap() };
        assert_eq!(repeated(MOST_TOOLS)["tools"].as_array().unwrap().len(), MOST_TOOLS);
        assert_eq!(repeated(MOST_TOOLS + 1)["tools"], json!([]));
    }
}
