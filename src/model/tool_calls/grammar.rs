//! Grammars that hold a model to the form of calls, and arguments to their schemas.

use super::{
    call::NAME_WITHIN,
    format::{Body, Format, Part},
    parser::{ToolCallParser, ToolChoice},
    schema::Argument,
};
use crate::{
    error::{Error, Result},
    model::{
        grammar::{bounds::check_length, source::Grammar},
        tokenizer::tools::Tool,
    },
};
use serde_json::{Map, Value, json};

/// Where the schema of all arguments is in that of one.
const WHOLE: &str = "#/$defs/whole";
/// Keywords of a schema that bring no arguments.
const WITHOUT_ARGUMENTS: [&str; 8] =
    ["type", "title", "description", "$schema", "$id", "$defs", "definitions", "x-guidance"];

/// Which arguments a call may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arguments {
    /// Those that conform to the schema.
    Conforming,
    /// Those that the schema names, with any values: other keywords are not supported.
    Named,
    /// Any, also such as make the call text.
    Any,
}

impl ToolCallParser {
    /// Has an answer be calls, or text of this grammar and no calls. [`grammar`](Self::grammar)
    /// returns the grammar of both, in which arguments of all tools conform to their schemas. An
    /// answer with calls begins with the first one, behind white space or not; after anything else,
    /// all is text.
    ///
    /// ```
    /// use bitnet_wgpu::model::{Grammar, Tokenizer, Tool, ToolCallParser, ToolChoice};
    ///
    /// # fn main() -> bitnet_wgpu::Result<()> {
    /// # let template = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}
    /// # <tool_call>
    /// # {{ c.function | tojson }}
    /// # </tool_call>{% endfor %}{% endfor %}";
    /// # let tokenizer = Tokenizer::from_directory("assets/tales-22m")?.with_chat_template(template);
    /// let tokenizer = tokenizer.with_tools([Tool::new("weather", r#"{"type": "object"}"#)?])?;
    /// let format = Grammar::json_schema(r#"{"type": "object", "required": ["answer"]}"#)?;
    /// let parser = ToolCallParser::new(&tokenizer)?.or_text(format);
    /// let grammar = parser.grammar(&ToolChoice::Auto, true)?; // for GenerateOptions::grammar
    /// # let _ = grammar;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn or_text(self, grammar: Grammar) -> Self {
        let starts = self.tools().iter().flat_map(|tool| {
            let start = start_of_call(self.format(), tool);
            // The space before it may go with that after the reasoning.
            [start.trim_start().to_owned(), start]
        });
        let starts = starts.collect();
        self.with_text(grammar, starts)
    }

    /// Returns a grammar of answers, for [`GenerateOptions::grammar`], that have calls as `choice`
    /// wants them, several only if `parallel`. Their arguments conform to the schemas of the tools.
    /// With [`ToolChoice::Auto`], the answer is any text until the mark of a call comes, and only
    /// arguments of [strict](Tool::strict) tools conform to their schemas.
    ///
    /// In the form of Qwen3-Coder, strings conform to `enum` only, and arguments are those of
    /// `properties`.
    ///
    /// A schema with keywords that are not supported is an error for a strict tool. Arguments of
    /// others are then any JSON object; in the form of Qwen3-Coder, any values of `properties`.
    ///
    /// [`GenerateOptions::grammar`]: crate::model::GenerateOptions::grammar
    ///
    /// # Errors
    /// [`Error::Grammar`] for a schema that is not supported or that nothing fulfills, and in the
    /// form of Qwen3-Coder for arguments without `properties`, or whose names it cannot write;
    /// [`Error::Invalid`] if there is no tool to call.
    pub fn grammar(&self, choice: &ToolChoice, parallel: bool) -> Result<Grammar> {
        let is_chosen = |tool: &&Tool| match choice {
            ToolChoice::Named(name) => tool.name() == name,
            _ => true,
        };
        let tools: Vec<&Tool> = self.tools().iter().filter(is_chosen).collect();
        if tools.is_empty() {
            return Err(Error::Invalid {
                op: "tool grammar",
                what: "there is no tool to call".into(),
            });
        }
        let (format, text) = (self.format(), self.text_grammar());
        // With a grammar of the text, that of the calls needs none.
        let is_auto = *choice == ToolChoice::Auto && text.is_none();
        let mut rules = Vec::new();
        for (n, tool) in tools.iter().enumerate() {
            let is_checked = tool.is_strict() || !is_auto;
            let which = if is_checked { Arguments::Conforming } else { Arguments::Any };
            let rule = rule(&format.body, tool, which)?;
            rules.push(format!("tool_{n}: {rule}"));
        }
        let names: Vec<String> = (0..tools.len()).map(|n| format!("tool_{n}")).collect();
        let named = matches!(choice, ToolChoice::Named(_));
        // A text that begins as a call is held to one, with a special token before it or not.
        let is_bare = *choice == ToolChoice::Auto && text.is_some();
        let start = start(format, is_auto, is_bare, parallel && !named);
        let tool = names.join(" | ");
        rules.push(format!("value[lazy]: /(.|\\n)*{}/", regex("</parameter>")));
        // Of 4 bytes each at most, fewer than [`NAME_WITHIN`].
        rules.push("KEY: /[^>\\n]{1,200}>\\n/".into());
        let calls = Grammar::lark(&format!("{start}\ntool: {tool}\n{}\n", rules.join("\n")))?;
        Ok(match text {
            Some(text) if *choice == ToolChoice::Auto => {
                calls.or(text.clone(), self.starts().to_vec())
            }
            _ => calls,
        })
    }
}

/// Rules of an answer: `start`, of which `tool` is a call without its marks; without its special
/// token too, if `is_bare` says so.
fn start(format: &Format, is_auto: bool, is_bare: bool, parallel: bool) -> String {
    let Format { open, close, before, after, special, .. } = format;
    let is_list = matches!(format.body, Body::Json { is_list: true, .. });
    let has_mark = !format.mark().is_empty();
    let optional = if is_bare { "?" } else { "" };
    let special = special.as_ref().map_or(String::new(), |(_, id)| format!("(<[{id}]>){optional}"));
    // White space before the first call is no part of it.
    let first = text(if open.is_empty() { before.trim_start() } else { before });
    let (open, before, tail) = (text(open), text(before), text(&format!("{after}{close}")));
    let rest = match (parallel, is_list) {
        (true, true) => format!("{first} tool (\", \" tool)* {tail}"),
        (true, false) if has_mark => {
            format!("{first} tool {tail} (\"\\n\" {open} {before} tool {tail})*")
        }
        _ => format!("{first} tool {tail}"),
    };
    if !is_auto {
        return format!("start: {special} {open} {rest}");
    }
    if !has_mark {
        let begin = if is_list { "\\[" } else { "\\{" };
        return format!(
            "start: FREE | {special} {rest}\nFREE: /([ \\t\\r\\n]*[^{begin} \\t\\r\\n](.|\\n)*)?/"
        );
    }
    let mark = regex(format.mark());
    if format.open.is_empty() {
        return format!("start: FREE | {rest}\nFREE: /(.|\\n)*/ & ~/(.|\\n)*{mark}(.|\\n)*/");
    }
    // The free text ends where the mark does: what comes next is a call.
    format!(
        "start: FREE | begun {rest}\nFREE: /(.|\\n)*/ & ~/(.|\\n)*{mark}(.|\\n)*/\nbegun[lazy]: /(.|\\n)*{mark}/"
    )
}

/// What a call of a tool begins with, before its first argument.
fn start_of_call(Format { open, before, body, .. }: &Format, tool: &Tool) -> String {
    let mut start = format!("{open}{before}");
    match body {
        Body::Functions => start += &format!("<function={}>\n", tool.name()),
        Body::Json { parts, .. } => {
            for part in parts {
                match part {
                    Part::Text(text) => start += text,
                    Part::Name => start += tool.name(),
                    Part::Arguments => break,
                }
            }
            start += "{";
        }
    }
    start
}

/// A call of a tool, with any values of arguments where its schema is not supported.
fn rule(body: &Body, tool: &Tool, which: Arguments) -> Result<String> {
    let rule = |which| match body {
        Body::Json { parts, .. } => object(parts, tool, which),
        Body::Functions => function(tool, which),
    };
    let made = match rule(which) {
        Err(Error::Grammar { .. }) if !tool.is_strict() => rule(Arguments::Named),
        made => made,
    };
    made.map_err(|error| match error {
        Error::Grammar { message } => {
            let message = format!("schema of the tool `{}`: {message}", tool.name());
            Error::Grammar { message }
        }
        error => error,
    })
}

/// A call as a JSON object.
fn object(parts: &[Part], tool: &Tool, which: Arguments) -> Result<String> {
    let arguments = arguments(tool, which)?;
    let part = |part: &Part| match part {
        Part::Text(part) => text(part),
        Part::Name => text(tool.name()),
        Part::Arguments => format!("%json {arguments}"),
    };
    Ok(parts.iter().map(part).collect::<Vec<_>>().join(" "))
}

/// A call in the form of Qwen3-Coder.
fn function(tool: &Tool, which: Arguments) -> Result<String> {
    let mut rule = text(&format!("<function={}>\n", tool.name()));
    let end = text("</function>");
    if which == Arguments::Any {
        return Ok(format!("{rule} ({} KEY value \"\\n\")* {end}", text("<parameter=")));
    }
    let checked = arguments(tool, which)?;
    let schema = if which == Arguments::Named { tool.parameters() } else { &checked };
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let argument = |(key, value): (&String, &Value)| {
        let (begin, end) = (text(&format!("<parameter={key}>\n")), text("\n</parameter>\n"));
        let argument = Argument { root: schema, part: value }.resolved();
        let values = argument.part.get("enum").and_then(Value::as_array);
        let argument = match (argument.is_text(), values) {
            _ if which == Arguments::Named => format!("{begin} value \"\\n\""),
            (true, Some(values)) => {
                let values: Vec<String> =
                    values.iter().filter_map(Value::as_str).map(text).collect();
                format!("{begin} ({}) {end}", values.join(" | "))
            }
            (true, None) => format!("{begin} value \"\\n\""),
            _ => format!("{begin} %json {} {end}", part_of(schema, key)),
        };
        let is_required = required.iter().any(|name| name == key);
        if is_required { argument } else { format!("({argument})?") }
    };
    // Where nothing is allowed, there is no argument.
    for property in named(schema)?.iter().filter(|it| *it.1 != false) {
        rule = format!("{rule} {}", argument(property));
        // Each part has its own copy of the definitions.
        check_length(&rule)?;
    }
    Ok(format!("{rule} {end}"))
}

/// The arguments that a schema names. No grammar holds other names to differ from each other.
fn named(schema: &Value) -> Result<Map<String, Value>> {
    let failed = |message: String| Error::Grammar { message };
    let brings_arguments = |(keyword, value): (&String, &Value)| match keyword.as_str() {
        "additionalProperties" => *value != false,
        "required" => value.as_array().is_none_or(|names| !names.is_empty()),
        keyword => !WITHOUT_ARGUMENTS.contains(&keyword),
    };
    let Some(properties) = schema["properties"].as_object() else {
        let free = schema.as_object().into_iter().flatten().find(|it| brings_arguments(*it));
        return match free {
            None => Ok(Map::new()),
            Some((keyword, _)) => Err(failed(format!(
                "the chat template writes arguments one by one, so `{keyword}` needs `properties` that name them"
            ))),
        };
    };
    let is_bad = |name: &&String| name.len() >= NAME_WITHIN || name.contains(['>', '\n']);
    match properties.keys().find(is_bad) {
        None => Ok(properties.clone()),
        Some(name) => Err(failed(format!(
            "the chat template cannot write an argument of the name `{name:.40}`; names of up to {} bytes without `>` and line breaks are accepted",
            NAME_WITHIN - 1
        ))),
    }
}

/// The schema of a tool's arguments, which are an object.
fn arguments(tool: &Tool, which: Arguments) -> Result<Value> {
    let is_checked = which == Arguments::Conforming;
    let mut schema = if is_checked { tool.parameters().clone() } else { json!({}) };
    schema["type"] = "object".into();
    Grammar::json_schema(&schema.to_string())?;
    // As templates write JSON; with any white space, some models write nothing else.
    schema["x-guidance"] = json!({
        "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
    });
    Ok(schema)
}

/// The schema of an argument. Where it has references, the whole schema is a definition of it.
fn part_of(schema: &Value, key: &str) -> Value {
    let mut part = schema["properties"][key].clone();
    if part.to_string().contains("\"$ref\"") {
        let mut whole = schema.clone();
        whole.as_object_mut().and_then(|whole| whole.remove("x-guidance"));
        move_references(&mut whole, false);
        // By a name of its own, since llguidance does not decode keys of references.
        let own = whole["properties"][key].clone();
        part = json!({ "$ref": "#/$defs/part", "$defs": { "whole": whole, "part": own } });
    }
    if part == true {
        part = json!({});
    }
    part["x-guidance"] = schema["x-guidance"].clone();
    part
}

/// Has references to a schema be to where it is a definition. Keys of some objects are names.
fn move_references(schema: &mut Value, has_names: bool) {
    match schema {
        Value::Array(parts) => parts.iter_mut().for_each(|part| move_references(part, false)),
        Value::Object(fields) => {
            for (key, value) in fields {
                let place = value.as_str().and_then(|text| text.strip_prefix('#'));
                match (place, key.as_str()) {
                    // To llguidance, `#/` is the whole schema too.
                    (Some(place), "$ref") => {
                        *value = format!("{WHOLE}{}", if place == "/" { "" } else { place }).into();
                    }
                    (_, "enum" | "const" | "default" | "examples") if !has_names => {}
                    (_, "properties" | "patternProperties" | "$defs" | "definitions") => {
                        move_references(value, !has_names);
                    }
                    _ => move_references(value, false),
                }
            }
        }
        _ => {}
    }
}

/// A text in Lark's syntax.
fn text(text: &str) -> String {
    Value::from(text).to_string()
}

/// A regular expression of a text in Lark's syntax.
fn regex(text: &str) -> String {
    regex_syntax::escape(text).replace('/', "\\/")
}
