//! Renders templates for `scripts/chat-template-check`: JSON on standard input and output.

#[path = "../tests/ordered.rs"]
mod ordered;

use chat_template::{Limits, LocalTime, Template};
use ordered::Ordered;
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Request {
    /// Time of `strftime_now`, as in `2026-07-04T09:05:03`.
    now: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    context: Ordered,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Text(String),
    Error(String),
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let request: Request = serde_json::from_reader(std::io::stdin().lock())?;
    let now: LocalTime = request.now.parse()?;
    let render = |case: &Case| {
        let template = Template::parse(&case.template)?.with_now(now);
        template.render(&case.context, &Limits::default())
    };
    let outcome = |case: &Case| match render(case) {
        Ok(text) => Outcome::Text(text),
        Err(error) => Outcome::Error(error.to_string()),
    };
    let outcomes: Vec<Outcome> = request.cases.iter().map(outcome).collect();
    serde_json::to_writer(std::io::stdout().lock(), &outcomes)?;
    Ok(())
}
