//! Texts by random schemas and random allowed tokens fulfill the schemas, by the crate jsonschema.

use super::*;
use rayon::prelude::*;

/// Makes random schemas whose texts are short.
struct Schemas<'a> {
    rng: &'a mut SmallRng,
    /// How often definitions may still be named.
    references: usize,
}

/// Names of properties, some of which have to be escaped.
const NAMES: [&str; 8] = ["a", "b", "name", "a b", "ü", "q\"t", "back\\slash", ""];
const PATTERNS: [&str; 5] =
    ["^[a-c]{1,4}$", "^\\d{3}-\\d{2}$", "^(yes|no)$", "^[^x]{2,6}$", "^A?B+C$"];
/// Of dates, times and addresses, the oracle knows leap years, leap seconds and lengths.
const FORMATS: [&str; 2] = ["uuid", "ipv4"];

impl Schemas<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.rng.random_range(0..n)
    }

    fn schema(&mut self, depth: usize) -> Value {
        let kinds = if depth == 0 { 8 } else { 14 };
        match self.below(kinds) {
            0 => json!({ "type": "null" }),
            1 => json!({ "type": "boolean" }),
            2 => self.integer(),
            3 => self.number(),
            4 | 5 => self.string(),
            6 => json!({ "enum": (0..=self.below(4)).map(|_| self.value()).collect::<Vec<_>>() }),
            7 => json!({ "const": self.value() }),
            8 | 9 => self.array(depth - 1),
            10 | 11 => self.object(depth - 1),
            12 => {
                let choices: Vec<_> = (0..=self.below(3)).map(|_| self.schema(depth - 1)).collect();
                json!({ "anyOf": choices })
            }
            _ if self.references > 0 => {
                self.references -= 1;
                json!({ "$ref": format!("#/$defs/{}", self.below(2)) })
            }
            _ => json!({ "type": ["null", "boolean"] }),
        }
    }

    fn integer(&mut self) -> Value {
        let least = self.rng.random_range(-2000i64..2000);
        let most = least + self.rng.random_range(0..3000);
        match self.below(4) {
            0 => {
                json!({ "type": "integer", "exclusiveMinimum": least, "exclusiveMaximum": most + 2 })
            }
            1 => {
                json!({ "type": "integer", "minimum": least, "maximum": most + 10, "multipleOf": 1 + self.below(5) })
            }
            _ => json!({ "type": "integer", "minimum": least, "maximum": most }),
        }
    }

    fn number(&mut self) -> Value {
        let least = self.rng.random_range(-100.0..100.0f64);
        let most = least + self.rng.random_range(0.5..100.0);
        json!({ "type": "number", "minimum": least, "maximum": most })
    }

    fn string(&mut self) -> Value {
        match self.below(5) {
            0 => json!({ "type": "string", "pattern": PATTERNS[self.below(PATTERNS.len())] }),
            1 => json!({ "type": "string", "format": FORMATS[self.below(FORMATS.len())] }),
            _ => {
                let least = self.below(5);
                json!({ "type": "string", "minLength": least, "maxLength": least + self.below(12) })
            }
        }
    }

    fn value(&mut self) -> Value {
        match self.below(7) {
            0 => Value::Null,
            1 => self.rng.random_bool(0.5).into(),
            2 => self.rng.random_range(-99i64..100_000).into(),
            3 => json!(-1.5),
            4 => json!([1, "x"]),
            5 => json!({ "k": NAMES[self.below(NAMES.len())] }),
            _ => NAMES[self.below(NAMES.len())].into(),
        }
    }

    fn array(&mut self, depth: usize) -> Value {
        let (least, more) = (self.below(3), self.below(3));
        let mut array = json!({ "type": "array", "items": self.schema(depth), "minItems": least, "maxItems": least + more });
        if self.rng.random_bool(0.3) {
            array["prefixItems"] = (0..=self.below(2)).map(|_| self.schema(depth)).collect();
        }
        array
    }

    fn object(&mut self, depth: usize) -> Value {
        let (mut properties, mut required) = (serde_json::Map::new(), Vec::new());
        for name in NAMES {
            if self.rng.random_bool(0.3) {
                properties.insert(name.into(), self.schema(depth));
                if self.rng.random_bool(0.5) {
                    required.push(name);
                }
            }
        }
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    }

    fn whole(rng: &mut SmallRng) -> Value {
        let mut schemas = Schemas { rng, references: 2 };
        let mut schema = schemas.schema(3);
        // Definitions name none, so that there is an end.
        schemas.references = 0;
        schema["$defs"] = json!({ "0": schemas.schema(1), "1": schemas.schema(1) });
        schema
    }
}

/// What came of some schemas.
#[derive(Debug, Default)]
struct Outcome {
    fulfilled: usize,
    unsupported: usize,
    cut: usize,
}

impl Outcome {
    fn plus(self, other: Self) -> Self {
        Self {
            fulfilled: self.fulfilled + other.fulfilled,
            unsupported: self.unsupported + other.unsupported,
            cut: self.cut + other.cut,
        }
    }
}

/// Writes two texts by the schema of a seed.
fn walk(seed: u64) -> Outcome {
    let mut outcome = Outcome::default();
    let rng = &mut SmallRng::seed_from_u64(seed);
    let schema = Schemas::whole(rng);
    let grammar = match Grammar::json_schema(&schema.to_string()) {
        Ok(grammar) => grammar,
        Err(error) => {
            // Each part of it can be fulfilled, but for multiples in a range without one.
            assert!(schema.to_string().contains("multipleOf"), "{seed}: {error}: {schema}");
            outcome.unsupported += 1;
            return outcome;
        }
    };
    let validator = jsonschema::options()
        .should_validate_formats(true)
        .build(&schema)
        .unwrap_or_else(|error| panic!("{seed}: {error}: {schema}"));
    for _ in 0..2 {
        match random_text(&grammar, &TOKENIZER, rng, 600) {
            Err(error) => panic!("{seed}: {error}: {schema}"),
            Ok(None) => outcome.cut += 1,
            Ok(Some(text)) => {
                let value: Value = serde_json::from_str(&text)
                    .unwrap_or_else(|error| panic!("{seed}: {error}: {text} by {schema}"));
                if let Err(error) = validator.validate(&value) {
                    panic!("{seed}: {error}: {text} by {schema}");
                }
                outcome.fulfilled += 1;
            }
        }
    }
    outcome
}

#[test]
fn random_texts_fulfill_random_schemas() {
    // GRAMMAR_SCHEMAS=100000 takes an hour of one core.
    let schemas: usize =
        std::env::var("GRAMMAR_SCHEMAS").map_or(300, |count| count.parse().unwrap());
    let outcome =
        (0..schemas as u64).into_par_iter().map(walk).reduce(Outcome::default, Outcome::plus);
    assert!(
        outcome.fulfilled > schemas * 5 / 3 && outcome.unsupported < schemas / 10,
        "{outcome:?}"
    );
}

#[test]
fn random_texts_match_expressions() {
    let expressions = [
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
        r"(yes|no|maybe)( (yes|no|maybe)){0,3}",
        r"\p{Lu}\p{L}{1,8}( \p{Lu}\p{L}{1,8})?",
        r"[^\x00-\x7F]{1,5}",
        r"a/b\\c",
    ];
    for (seed, expression) in (0..).zip(expressions) {
        let grammar = Grammar::regex(expression).unwrap();
        let whole = fancy(expression);
        for tokenizer in [&*TOKENIZER, &*SENTENCE_PIECE] {
            let rng = &mut SmallRng::seed_from_u64(seed);
            let texts: Vec<String> = (0..20)
                .filter_map(|_| random_text(&grammar, tokenizer, rng, 300).unwrap())
                .collect();
            assert!(texts.len() > 10, "{expression}: {texts:?}");
            for text in texts {
                // A space at the beginning of a text is none of it in SentencePiece.
                assert!(whole.is_match(&text), "{expression}: {text}");
            }
        }
    }
}

fn fancy(expression: &str) -> regex::Regex {
    regex::Regex::new(&format!("^(?:{expression})$")).unwrap()
}
