//! Grammars that hold a model to the form of calls, and arguments to their schemas.

use super::{
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
use serde_json::{Value, json};

/// Where the schema of all arguments is in that of one.
const WHOLE: &str = "#/$defs/whole";

impl ToolCallParser {
    /// Has an answer be calls, or text of this grammar and no calls. [`grammar`](Self::grammar)
    /// returns the grammar of both, in which arguments of all tools conform to their schemas. An
    /// answer with calls begins with the first one; after anything else, all is text.
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
    /// In the form of Qwen3-Coder, strings conform to `enum` only.
    ///
    /// A schema with keywords that are not supported is an error for a strict tool. Arguments of
    /// others are then any JSON object.
    ///
    /// [`GenerateOptions::grammar`]: crate::model::GenerateOptions::grammar
    ///
    /// # Errors
    /// [`Error::Grammar`] for a schema that is not supported or that nothing fulfills;
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
            let rule = rule(&format.body, tool, is_checked)?;
            rules.push(format!("tool_{n}: {rule}"));
        }
        let names: Vec<String> = (0..tools.len()).map(|n| format!("tool_{n}")).collect();
        let named = matches!(choice, ToolChoice::Named(_));
        let start = start(format, is_auto, parallel && !named);
        let tool = names.join(" | ");
        rules.push(format!("value[lazy]: /(.|\\n)*{}/", regex("</parameter>")));
        rules.push("KEY: /[^>\\n]+>\\n/".into());
        let calls = Grammar::lark(&format!("{start}\ntool: {tool}\n{}\n", rules.join("\n")))?;
        Ok(match text {
            Some(text) if *choice == ToolChoice::Auto => {
                calls.or(text.clone(), self.starts().to_vec())
            }
            _ => calls,
        })
    }
}

/// Rules of an answer: `start`, of which `tool` is a call without its marks.
fn start(format: &Format, is_auto: bool, parallel: bool) -> String {
    let Format { open, close, before, after, special, .. } = format;
    let is_list = matches!(format.body, Body::Json { is_list: true, .. });
    let has_mark = !format.mark().is_empty();
    let special = special.as_ref().map_or(String::new(), |(_, id)| format!("<[{id}]>"));
    let (open, before, tail) = (text(open), text(before), text(&format!("{after}{close}")));
    let rest = match (parallel, is_list) {
        (true, true) => format!("{before} tool (\", \" tool)* {tail}"),
        (true, false) if has_mark => {
            format!("{before} tool {tail} (\"\\n\" {open} {before} tool {tail})*")
        }
        _ => format!("{before} tool {tail}"),
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

/// A call of a tool, with any arguments where its schema is not supported.
fn rule(body: &Body, tool: &Tool, is_checked: bool) -> Result<String> {
    let rule = |is_checked| match body {
        Body::Json { parts, .. } => object(parts, tool, is_checked),
        Body::Functions => function(tool, is_checked),
    };
    match rule(is_checked) {
        Err(Error::Grammar { message }) if tool.is_strict() => {
            let message = format!("schema of the tool `{}`: {message}", tool.name());
            Err(Error::Grammar { message })
        }
        Err(Error::Grammar { .. }) => rule(false),
        made => made,
    }
}

/// A call as a JSON object.
fn object(parts: &[Part], tool: &Tool, is_checked: bool) -> Result<String> {
    let arguments = arguments(tool, is_checked)?;
    let part = |part: &Part| match part {
        Part::Text(part) => text(part),
        Part::Name => text(tool.name()),
        Part::Arguments => format!("%json {arguments}"),
    };
    Ok(parts.iter().map(part).collect::<Vec<_>>().join(" "))
}

/// A call in the form of Qwen3-Coder.
fn function(tool: &Tool, is_checked: bool) -> Result<String> {
    let schema = arguments(tool, is_checked)?;
    let name = text(&format!("<function={}>\n", tool.name()));
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let argument = |(key, value): (&String, &Value)| {
        let (begin, end) = (text(&format!("<parameter={key}>\n")), text("\n</parameter>\n"));
        let argument = Argument { root: &schema, part: value }.resolved();
        let values = argument.part.get("enum").and_then(Value::as_array);
        let argument = match (argument.is_text(), values) {
            (true, Some(values)) => {
                let values: Vec<String> =
                    values.iter().filter_map(Value::as_str).map(text).collect();
                format!("{begin} ({}) {end}", values.join(" | "))
            }
            (true, None) => format!("{begin} value \"\\n\""),
            _ => format!("{begin} %json {} {end}", part_of(&schema, key)),
        };
        let is_required = required.iter().any(|name| name == key);
        if is_required { argument } else { format!("({argument})?") }
    };
    let mut rule = name;
    match schema["properties"].as_object() {
        Some(properties) => {
            // Where nothing is allowed, there is no argument.
            for property in properties.iter().filter(|it| *it.1 != false) {
                rule = format!("{rule} {}", argument(property));
                // Each part has its own copy of the definitions.
                check_length(&rule)?;
            }
        }
        None => rule += &format!(" ({} KEY value \"\\n\")*", text("<parameter=")),
    }
    Ok(format!("{rule} {}", text("</function>")))
}

/// The schema of a tool's arguments, which are an object.
fn arguments(tool: &Tool, is_checked: bool) -> Result<Value> {
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
