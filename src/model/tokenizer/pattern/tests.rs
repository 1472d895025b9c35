use super::*;
use crate::limits::tokenizer::MOST_BRANCHES;

/// Patterns that published tokenizers split texts by, and others for what these do not use.
const PATTERNS: &[&str] = &[
    // GPT-2, Llama 3, Qwen 2, Qwen 3.5, o200k, DeepSeek V3.
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // cl100k, with possessive repetitions; Falcon, Bloom, CLIP, DeepSeek's Chinese, T5, Gemma.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[0-9][0-9][0-9]",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    r" {2,}",
    r" ",
    // Digits in groups of three from the right.
    r"(?=(\d{3})+(?!\d))",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"(?<!\S)a+|(?<=b|cc)d|(?<![a-z]|é1)7",
    r"a.*?b|\bx|y\b|\Bz|^m|n$|(?m:^q|r$)",
    r"x*",
    r"(?:\r\n|\n)+| ?\w+\S*?",
    r"(?<=\S)(?=\n)",
    r"(?s:.+)$",
    r"(?!\s).",
    r"(?>a+)b|a",
    r"(?:ab|a)(?:c|bcd)(?:d*)",
];

fn found(pattern: &Pattern, text: &str) -> Vec<(usize, usize)> {
    pattern.find_all(text, &mut u64::MAX.clone()).unwrap()
}

fn texts(count: usize) -> impl Iterator<Item = String> {
    const PIECES: [&str; 40] = [
        "a", "aa", "b", "B", "'s", "'LL", " ", "  ", "\n", "\r\n", "\t", "1", "23", "456", "é",
        "É", "ſ", "K", "東", "京", "\u{300}", "!", "?", "...", "c", "d", "cc", "bcd", "x", "y",
        "z", "m", "q", "r", "n", "\u{a0}", "😀", "ǅ", "_", "/",
    ];
    let mut seed = 12345u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    (0..count).map(move |_| (0..random(16)).map(|_| PIECES[random(PIECES.len())]).collect())
}

#[test]
fn matches_are_those_of_fancy_regex() {
    for source in PATTERNS {
        let (ours, theirs) =
            (Pattern::regex(source).unwrap(), fancy_regex::Regex::new(source).unwrap());
        for text in texts(1000) {
            let expected: Vec<_> = theirs
                .find_iter(&text)
                .map(|found| found.map(|found| (found.start(), found.end())).unwrap())
                .collect();
            assert_eq!(found(&ours, &text), expected, "{source} in {text:?}");
        }
    }
    for text in texts(1000) {
        let expected: Vec<_> = text.match_indices("a").map(|(at, _)| (at, at + 1)).collect();
        assert_eq!(found(&Pattern::literal("a"), &text), expected);
    }
}

/// Texts of one kind of character, which are the worst for patterns that scan a run twice.
#[test]
fn published_patterns_take_few_steps() {
    let long = ["A", " ", "aA", "\n", "東", "1", "!", " \n", "'", " x", "é'", "\u{300}"]
        .map(|piece| piece.repeat(20_000));
    for source in &PATTERNS[..13] {
        let pattern = Pattern::regex(source).unwrap();
        for text in &long {
            for text in [text.clone(), format!("{text}a"), format!("{text}1")] {
                let mut steps = u64::MAX;
                pattern.find_all(&text, &mut steps).unwrap();
                let per_byte = (u64::MAX - steps) / text.len() as u64;
                assert!(per_byte <= 32, "{source}: {per_byte} steps a byte of {:?}", text.get(..3));
            }
        }
    }
}

#[test]
fn quadratic_patterns_run_out_of_steps() {
    let text = "a".repeat(100_000);
    for source in [
        r"a*b|a",
        r"(?=a*b)b|a",
        r"a+(?!a|\z)",
        r"(?:a|a)*b",
        r"(a+)+b",
        r"(?>a+)b|a",
        r"a(?=a*$)(?!a)|(?s:.)",
    ] {
        let mut steps = 256 * text.len() as u64;
        assert_eq!(
            Pattern::regex(source).unwrap().find_all(&text, &mut steps),
            Err(OutOfSteps),
            "{source}"
        );
    }
}

/// Each repetition leaves a place to go on from.
#[test]
fn places_to_go_on_from_are_bounded() {
    let pattern = Pattern::regex("(?:ab)*").unwrap();
    let find = |places: usize| {
        let (text, mut steps) = ("ab".repeat(places - 1), u64::MAX);
        pattern.find_all(&text, &mut steps).map(|found| found[0] == (0, text.len()))
    };
    assert_eq!((find(MOST_BRANCHES), find(MOST_BRANCHES + 1)), (Ok(true), Err(OutOfSteps)));
}

#[test]
fn unsupported_patterns_are_named() {
    let error = |source: &str| Pattern::regex(source).unwrap_err();
    for source in [r"(a)\1", r"a\Kb", r"\Ga", r"(?<a>x)\k<a>", r"(a)?(?(1)b|c)"] {
        assert!(error(source).contains("back-references"), "{source}: {}", error(source));
    }
    assert!(error(r"(?:a*)*").contains("may be empty"));
    assert!(error(r"(?<=a+)b").contains("look-behinds"));
    assert!(error(r"(?:(?:ab){1000}){1000}").contains("8192 instructions"));
    assert!(error(&format!("(?:{}){{200}}", "ab|".repeat(100))).contains("8192 instructions"));
    assert!(error("(").contains("parenthesis"), "{}", error("("));
    // Repetitions of nothing are not unrolled.
    assert!(Pattern::regex("(?:(){4000000000}){4000000000}a").is_ok());
}
