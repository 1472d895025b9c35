//! Templates from strangers do no harm.

use super::*;

/// Templates that took a general interpreter's stack or gigabytes of memory. Here each is an error,
/// on a thread of 2 MiB; one that is within the limits may render.
#[test]
fn hostile_templates_do_no_harm() {
    let chain = |open: &str, inner: &str, close: &str, length: usize| {
        format!("{{{{ {}{inner}{} }}}}", open.repeat(length), close.repeat(length))
    };
    let blocks =
        |open: &str, close: &str, length: usize| open.repeat(length) + &close.repeat(length);
    let nested = "{% set n = namespace(x=[]) %}{% for i in range(100000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}";
    let refused = [
        "{% set n = namespace() %}{% set n.x = n %}{{ n }}".to_owned(),
        "{% set n = namespace() %}{% set n.x = [n] %}{{ n.x }}".into(),
        "{% set n = namespace() %}{% set n = namespace(x=n) %}".into(),
        "{% for i in [1] %}{% set x = [loop] %}{{ x }}{% endfor %}".into(),
        nested.into(),
        nested.replace("[n.x] ", "{'a': n.x} "),
        chain("-", "1", "", 100_000),
        chain("not ", "1", "", 100_000),
        chain("", "1", "+1", 100_000),
        chain("", "a", ".b", 100_000),
        chain("", "a", "[0]", 100_000),
        chain("", "a", "|string", 100_000),
        chain("", "a", " is string", 100_000),
        chain("", "a", "()", 100_000),
        chain("(", "1", ")", 100_000),
        chain("[", "1", "]", 100_000),
        chain("{1:", "1", "}", 100_000),
        chain("", "1", " if 1", 100_000),
        chain("", "1", " if 1 else 1", 100_000),
        chain("", "1", " and 1", 100_000),
        chain("", "1", "~1", 100_000),
        chain("", "1", "**1", 100_000),
        blocks("{% if 1 %}", "{% endif %}", 100_000),
        blocks("{% for i in [1] %}", "{% endfor %}", 100_000),
        blocks("{% with %}", "{% endwith %}", 100_000),
        blocks("{% macro f() %}", "{% endmacro %}", 100_000),
        blocks("{% set x %}", "{% endset %}", 100_000),
        "{% for ".to_owned() + &"(".repeat(100_000) + "a in b %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".into(),
        "{% macro f(x) %}{{ x(x) }}{% endmacro %}{{ f(f) }}".into(),
        "{% macro f() %}".to_owned()
            + &"{% if 1 %}".repeat(50)
            + "{{ "
            + &"[".repeat(50)
            + "f()"
            + &"]".repeat(50)
            + " }}"
            + &"{% endif %}".repeat(50)
            + "{% endmacro %}{{ f() }}",
        "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}".into(),
        "{{ messages|batch(100000000000, 1)|list }}".into(),
        "{{ '%4000000000d'|format(1) }}".into(),
        "{{ 'a' * 4000000000 }}".into(),
        "{{ range(100000000) }}".into(),
        "{{ [1] * 100000000 }}".into(),
        "{{ 9223372036854775807 + 1 }}".into(),
        "{{ -9223372036854775807 - 2 }}".into(),
        "{{ 2 ** 10000000 }}".into(),
        "{{ 1.5 | round(999999999999) | tojson(indent=999999999) }}".into(),
        "{{ 'a' | indent(4000000000) }}".into(),
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}".into(),
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}".into(),
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}".into(),
        "{% set n = namespace(x=[1]) %}{% for i in range(50) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}".into(),
        "{% set n = namespace(x=[1]) %}{% for i in range(50) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x == n.x }}".into(),
        "{% set n = namespace(x=[1]) %}{% for i in range(50) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}".into(),
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x.replace('a', 'aaaaaaaaaa') %}{% endfor %}".into(),
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x | join(n.x) %}{% endfor %}".into(),
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}{% endfor %}"
            .into(),
        "{% set n = namespace(x=[]) %}{% for i in range(100000) %}{% set n.x = n.x + ['a' * 100000] %}{% endfor %}".into(),
        "{% for i in range(100000) %}{{ 'a' * 10000 }}{% endfor %}".into(),
        "{% for i in range(100000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}".into(),
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{% if 'b' in x %}{% endif %}{% endfor %}".into(),
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{% if x | list | length %}{% endif %}{% endfor %}".into(),
        "{{ ['a', 1] | sort }}".into(),
        "{% break %}".into(),
        "{% if true %}{% continue %}{% endif %}a".into(),
        "{% for i in [1] %}{% macro f() %}{% break %}{% endmacro %}{{ f() }}{% endfor %}".into(),
        "{% for i in [1] %}{% set x %}{% break %}{% endset %}{% endfor %}".into(),
        "{% for i in [1] %}{% else %}{% break %}{% endfor %}".into(),
        "{{ messages | tojson(nothing=1) }}".into(),
        "{{ 'a' | trim('a', 'b') }}".into(),
        "{{ 'a'.upper(1) }}".into(),
        "{{ 1 is odd(1) }}".into(),
        "{{ {1: 2} | tojson(sort_keys=true) }}".into(),
        "{{ ['b'] | dictsort }}".into(),
        "{{ 1.5 | round(0, 'down') }}".into(),
        "{{ f(".to_owned() + &"1,".repeat(300) + ") }}",
        // What takes long for what it says.
        "{% set x = 'a' * 1000000 %}{% set y = 'b' * 1000000 ~ 'a' %}{{ x.strip(y) }}".into(),
        "{% set n = namespace(x=[1]) %}{% for i in range(20) %}{% set n.x = n.x + n.x %}{% endfor %}{% for i in range(100000) %}{{ n.x | sum }}{% endfor %}"
            .into(),
        "{% set x = ('b',) * 'a' %}".into(),
        "{% set n = namespace(x=('b',)) %}{% for i in range(20) %}{% set n.x = n.x + n.x %}{% endfor %}{% for i in range(100000) %}{{ 'a'.startswith(n.x) }}{% endfor %}"
            .into(),
        "{% set x = ' ' * 1000000 ~ '1' %}{% for i in range(100000) %}{% set y = x | int %}{% endfor %}".into(),
        "{% set d = namespace(x='{') %}{% for i in range(100) %}{% for j in range(100000) %}{% set k = namespace(d=d.x) %}{% set d.x = d.x %}{% endfor %}{% endfor %}"
            .into(),
        "{{ {".to_owned() + &(0..4000).map(|i| format!("'k{i}': 1,")).collect::<String>() + "}|length }}{% for i in range(10000) %}{% set d = {"
            + &(0..4000).map(|i| format!("'k{i}': 1,")).collect::<String>()
            + "} %}{% endfor %}",
        "x".repeat(2 << 20),
        // As long as a template may be.
        "{{a}}".repeat(200_000) + "{{",
        "{{ '{{' }}".repeat(100_000) + "{% raw %}",
        "{# #}".repeat(200_000) + "{#",
        "{%".repeat(500_000),
        "{% raw %}{% ".repeat(80_000),
        "{".repeat(1_000_000),
        "{{ 1".to_owned() + &" ".repeat(1_000_000),
    ];
    for template in refused {
        let shown: String = template.chars().take(100).collect();
        let started = std::time::Instant::now();
        let result = render(&template, &user("Hello"));
        assert!(
            matches!(result, Err(Error::Syntax(_) | Error::Render(_))),
            "{shown}: {:?}",
            result.map(|text| text.len())
        );
        if template.contains("['a' * 100000]") {
            // Not for its steps: 16 MiB are had long before.
            assert!(result.as_ref().unwrap_err().to_string().contains("16 MiB"), "{result:?}");
        }
        println!("{:6.2} s  {shown}", started.elapsed().as_secs_f64());
    }
}

/// Cases of a property, unless `PROPTEST_CASES` says it.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").map_or(usual, |cases| cases.parse().unwrap())
}

/// Any sequence of the language's pieces renders, or is an error.
fn fragments() -> impl Strategy<Value = String> {
    const PIECES: [&str; 103] = [
        "{{ ",
        " }}",
        "{{- ",
        " -}}",
        "{% ",
        " %}",
        "{%- ",
        " -%}",
        "{# ",
        " #}",
        "for ",
        "in ",
        "if ",
        "elif ",
        "else ",
        "endif ",
        "endfor ",
        "set ",
        "endset ",
        "with ",
        "endwith ",
        "macro f(x) ",
        "endmacro ",
        "filter upper ",
        "endfilter ",
        "raw ",
        "endraw ",
        "generation ",
        "endgeneration ",
        "break ",
        "continue ",
        "is ",
        "not ",
        "and ",
        "or ",
        "defined ",
        "none ",
        "true ",
        "x ",
        "y ",
        "n.x ",
        "f(x) ",
        "messages ",
        "message ",
        "loop ",
        "loop.index ",
        "namespace(x=1) ",
        "range(9) ",
        "range(100000) ",
        "= ",
        "== ",
        "< ",
        "+ ",
        "- ",
        "* ",
        "/ ",
        "// ",
        "% ",
        "** ",
        "~ ",
        "| ",
        ". ",
        ", ",
        ": ",
        "( ",
        ") ",
        "[ ",
        "] ",
        "{ ",
        "} ",
        "'a' ",
        "\"b\" ",
        "'é東' ",
        "1 ",
        "0 ",
        "-1 ",
        "1.5 ",
        "9223372036854775807 ",
        "join ",
        "length ",
        "list ",
        "batch(2) ",
        "tojson ",
        "sort ",
        "replace('a', 'aa') ",
        "split('a') ",
        "[::-1] ",
        "[1:] ",
        "\n",
        " ",
        "text",
        "\u{1b}",
        "format(x, *y, **n) ",
        "'{:>{}}{!r}'.format(x, 9) ",
        "'%5s|%-*d' % (x, 4, y) ",
        "wordwrap(3) ",
        "groupby('role') ",
        "truncate(3) ",
        ".partition('a') ",
        ".center(9, '*') ",
        ".encode() ",
        "strftime_now('%c %-d') ",
        "0x1f ",
    ];
    prop::collection::vec(prop::sample::select(&PIECES[..]), 0..40)
        .prop_map(|pieces| pieces.concat())
}

/// A template with its statements closed, so that more of it runs.
fn programs() -> impl Strategy<Value = String> {
    let value = prop::sample::select(
        &[
            "x",
            "y",
            "n.x",
            "messages",
            "'aé'",
            "'{:>5}%d-%s'",
            "1",
            "0",
            "-7",
            "2.5",
            "[x, y]",
            "{'a': x}",
            "range(50)",
            "none",
            "loop.index",
            "f(y)",
        ][..],
    );
    let operator = prop::sample::select(
        &[
            "+",
            "-",
            "*",
            "/",
            "//",
            "%",
            "**",
            "~",
            "==",
            "<",
            "in",
            "and",
            "or",
            "if y else",
            "is sameas",
        ][..],
    );
    let filter = prop::sample::select(
        &[
            "",
            "|list",
            "|length",
            "|join(x)",
            "|string",
            "|tojson",
            "|sort",
            "|first",
            "|upper",
            "|replace('a', y)",
            "|batch(3)|list",
            "|map('string')|list",
            "[::-1]",
            "[1:]",
            "|reverse|list",
            "|e",
            "|indent",
            "|int",
            "|abs",
            "|wordwrap(2)",
            "|truncate(3, true)",
            "|center(7)",
            "|groupby(0)",
            "|slice(2)|list",
            "|select",
            "|urlencode",
            "|format(x, y)",
            "|string|wordcount",
            ".items()",
            ".encode()",
            ".format(x, 1)",
        ][..],
    );
    let expression = (value.clone(), operator, value, filter)
        .prop_map(|(a, operator, b, filter)| format!("({a} {operator} {b}){filter}"));
    let statement = (0..8, expression.clone(), expression).prop_map(|(kind, a, b)| match kind {
        0 => format!("{{% set x = {a} %}}"),
        1 => format!("{{% set y = {a} %}}"),
        2 => format!("{{% set n.x = {a} %}}"),
        3 => format!("{{% for x in {a} %}}{{{{ {b} }}}}{{% set n.x = {b} %}}{{% endfor %}}"),
        4 => format!("{{% if {a} %}}{{{{ {b} }}}}{{% endif %}}"),
        5 => format!("{{% set x %}}{{{{ {a} }}}}{{{{ {b} }}}}{{% endset %}}"),
        6 => format!("{{% macro f(x) %}}{{{{ {a} }}}}{{% endmacro %}}"),
        _ => format!("{{{{ {a} }}}}"),
    });
    prop::collection::vec(statement, 1..30).prop_map(|all| {
        "{% set n = namespace(x=2) %}{% set x = 'ab' %}{% set y = [1, 'b'] %}".to_owned()
            + &all.concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(3000), ..ProptestConfig::default() })]
    #[test]
    fn any_template_renders_or_is_refused(template in prop_oneof![fragments(), programs()]) {
        match render(&template, &user("Hello")) {
            Ok(_) | Err(Error::Syntax(_) | Error::Render(_)) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// Everything that a template can make long counts before it is allocated: what is refused here
/// would take gigabytes.
#[test]
fn templates_ask_before_they_allocate() {
    for (template, reason) in [
        ("{{ range(10 ** 9) | length }}", "100000 are supported"),
        ("{{ ('a' * 1000) * 1000000000 }}", "take more than"),
        ("{{ 'ab'.replace('a', 'c' * 1000000).replace('c', 'd' * 1000000) }}", "take more than"),
        ("{{ (('a' * 1000000) | list | join('b' * 1000000)) | length }}", "take more than"),
        ("{{ range(100000) | join('b' * 1000000) }}", "take more than"),
        ("{{ 'b'.join(range(100000)) * 1000 }}", "take more than"),
        ("{{ ('\\n' * 1000000) | indent(100, true, true) }}", "take more than"),
        ("{{ [1] | batch(4000000000, 'a') | list }}", "take more than"),
        ("{{ ('&' * 5000000) | e }}", "take more than"),
        ("{{ ('\\n' * 5000000) | tojson }}", "take more than"),
        ("{{ 'a' | center(4000000000) }}", "take more than"),
        ("{{ '%4000000000d' | format(1) }}", "take more than"),
        ("{{ '%999999999d' % 1 }}", "take more than"),
        ("{{ '%99999999999999999999999d' % 1 }}", "a width or precision of"),
        ("{{ '%*d' % (10**9, 1) }}", "take more than"),
        ("{{ '%.999999999f' % 1.5 }}", "1000 is supported"),
        ("{{ '%.999999999d' % 1 }}", "take more than"),
        ("{{ '%.999999999s' % 'a' ~ 'a' * 1000000000 }}", "take more than"),
        ("{{ '{:999999999}'.format(1) }}", "take more than"),
        ("{{ '{:999999999,}'.format(1) }}", "take more than"),
        ("{{ '{:0999999999,}'.format(1) }}", "take more than"),
        ("{{ '{:.999999999f}'.format(1.5) }}", "1000 is supported"),
        ("{{ '{:09223372036854775808,}'.format(1) }}", "take more than"),
        ("{{ '{:>18446744073709551615}'.format('é') }}", "take more than"),
        ("{{ 'a'.ljust(9223372036854775807, '😀') }}", "take more than"),
        ("{{ [1] | map(**{'': 'upper'}) | list }}", "no argument"),
        ("{{ '{:{w}}'.format(1, w=999999999) }}", "take more than"),
        ("{{ ('{0}' * 100000).format('a' * 10000) }}", "take more than"),
        ("{{ ('%(x)s' * 100000) % {'x': 'a' * 10000} }}", "take more than"),
        ("{{ ('{0!r}' * 100000).format('\\x01' * 10000) }}", "take more than"),
        ("{{ 'a'.ljust(10**9) }}", "take more than"),
        ("{{ 'a'.rjust(10**9) }}", "take more than"),
        ("{{ 'a'.center(10**9) }}", "take more than"),
        ("{{ 'a'.center(9223372036854775807) }}", "take more than"),
        ("{{ '1'.zfill(10**9) }}", "take more than"),
        ("{{ '\t'.expandtabs(10**9) }}", "take more than"),
        ("{{ ('\t' * 100000).expandtabs(10000) }}", "take more than"),
        ("{{ (' a' * 1000000) | wordwrap(1) }}", "take more than"),
        ("{{ ('a ' * 10000) | wordwrap(1, wrapstring='b' * 10000) }}", "take more than"),
        ("{{ ('\n' * 100000) | indent('b' * 10000, blank=true) }}", "take more than"),
        ("{{ ('é' * 6000000) | urlencode }}", "take more than"),
        ("{{ [1] | slice(10**9) | list }}", "take more than"),
        ("{{ ('é' * 6000000).encode('unicode_escape') }}", "take more than"),
        ("{{ 'a' | truncate(10**18) | length ~ 'a' * 10**9 }}", "take more than"),
        ("{{ namespace(**dict(range(600) | map('string') | batch(2))).a }}", "more than"),
        ("{{ namespace(*range(100000)) }}", "more than 256 arguments"),
        ("{{ strftime_now('%c' * 2000000) }}", "take more than"),
        ("{{ 'a' | indent(101) }}", "100 are supported"),
        ("{{ [1] * 10**9 }}", "take more than"),
        ("{{ (1,) * 9223372036854775807 }}", "take more than"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "8 times"),
    ] {
        let error = error(template);
        // Steps count what is written, so that they may end before the memory does.
        let reason = if error.contains("too many steps") && reason == "take more than" {
            "steps"
        } else {
            reason
        };
        assert!(error.contains(reason), "{template}: {error}");
    }
    // Eight macros within each other, each of which evaluates 50 things within each other.
    let deep = "{% macro f() %}".to_owned()
        + &"{% if 1 %}".repeat(50)
        + "{{ f() }}"
        + &"{% endif %}".repeat(50)
        + "{% endmacro %}{{ f() }}";
    assert!(error(&deep).contains("deeper than 200 times"));
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
    assert!(error(&nested).contains("60"));
}

/// What is slow in proportion to its input takes steps in proportion: each of these ends in an
/// error, or in less time than a few million steps take.
#[test]
fn slow_filters_end_in_time() {
    for template in [
        "{{ (('ab-' * 50000 ~ ' ') * 5) | wordwrap(3) | length }}",
        "{{ ('a' * 1000000) | wordwrap(1) | length }}",
        "{{ ('-' * 500000) | wordwrap(2) | length }}",
        "{{ ('a--' * 100000) | wordwrap(2) | length }}",
        "{% for i in range(100000) %}{{ ('a ' * 1000) | wordwrap(1) | length }}{% endfor %}",
        "{{ range(100000) | map('string') | unique | list | length }}",
        "{{ range(100000) | map('string') | groupby(0) | length }}",
        "{% for i in range(1000) %}{{ range(100000) | groupby('a', 1) | length }}{% endfor %}",
        "{% for i in range(1000) %}{{ range(100000) | sort | length }}{% endfor %}",
        "{% set x = ['a' * 100000] * 100 %}{% for i in range(1000) %}{{ x | sort | length }}{% endfor %}",
        "{% for i in range(100000) %}{{ 'a'.center(10000) | length }}{% endfor %}",
        "{% for i in range(100000) %}{{ ('%s' * 100) % ((1,) * 100) }}{% endfor %}",
        "{% for i in range(100000) %}{{ ('{}' * 100).format(*([1] * 100)) }}{% endfor %}",
        "{{ ('{' * 1000000).format() }}",
        "{{ ('{0[' * 300000).format(1) }}",
        "{{ ('{0' ~ '.a' * 500000 ~ '}').format({}) }}",
        "{{ ('{:' * 300000 ~ '}' * 300000).format(*[1] * 5) }}",
        "{{ ('%(' * 500000) % {} }}",
        "{{ ('%(' * 1000 ~ ')s' * 1000) % {} }}",
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x.rfind('b', 5, 900000) }}{% endfor %}",
        "{% set x = 'ab' * 500000 %}{% for i in range(100000) %}{{ x.rsplit(none, 1) | length }}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x | wordcount }}{{ x | truncate(5) }}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{% set y = x.encode() | length %}{% endfor %}",
        "{% set x = [1] * 100000 %}{% for i in range(100000) %}{{ x.index(2) if 0 else x.count(2) }}{% endfor %}",
        "{% set x = range(100000) | map('string') %}{% for i in range(100000) %}{{ x | first }}{% endfor %}{% for i in range(1000) %}{{ 'q' in x }}{% endfor %}",
    ] {
        let started = std::time::Instant::now();
        let result = render(template, &user("Hello")).map(|text| text.len());
        let seconds = started.elapsed().as_secs_f64();
        println!("{seconds:6.2} s  {template}: {result:?}");
        assert!(seconds < 20.0, "{template}");
        assert!(matches!(result, Ok(_) | Err(Error::Render(_))), "{template}");
    }
}

/// Generators hold their elements, and count and nest as lists do.
#[test]
fn generators_are_bounded() {
    let nested = "{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = [n.x] | map('default') %}{% endfor %}";
    assert!(error(nested).contains("nested deeper than 60"), "{}", error(nested));
    let many = "{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = n.x + [range(100000) | map('string')] %}{% endfor %}";
    assert!(error(many).contains("take more than 16 MiB"), "{}", error(many));
}
