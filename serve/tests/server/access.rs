//! Who may ask: hosts, origins, keys.

use crate::{
    Served,
    client::{get, post, send},
    cpu,
    raw::{exchange, request},
};
use bitnet_serve::{Options, Server};
use bitnet_wgpu::model::BatchOptions;
use serde_json::{Value, json};

/// The status for some headers.
fn ask(server: &Served, headers: &str) -> u16 {
    let (status, answer) = exchange(&server.address, &request("GET /health", headers, ""));
    let named = answer.contains("--allowed-host") && answer.contains("\"forbidden\"");
    assert_eq!(status == 403, named, "{answer}");
    status
}

#[test]
fn hosts_of_other_sites_are_refused() {
    let server = Served::new(&cpu(), 1, 1, |options| options.allowed_hosts(["tales.example"]));
    for host in [
        "localhost",
        "LocalHost:80",
        "127.0.0.1:1",
        "127.1.2.3",
        "[::1]:8080",
        "tales.example",
        "TALES.example:443",
    ] {
        assert_eq!(ask(&server, &format!("Host: {host}\r\n")), 200, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "10.0.0.1",
        "me@localhost",
        "",
        "a b",
        "tales.example.evil.example",
    ] {
        assert_eq!(ask(&server, &format!("Host: {host}\r\n")), 403, "{host}");
    }
    assert_eq!(ask(&server, ""), 403, "HTTP/1.1 needs one");
    assert_eq!(ask(&server, "Host: localhost\r\nHost: localhost\r\n"), 403);
    assert_eq!(get(&server.address, "/health").status, 200, "HTTP/1.0");
    for (head, status) in
        [("GET http://evil.example/health", 403), ("GET http://localhost/health", 200)]
    {
        assert_eq!(
            exchange(&server.address, &request(head, "Host: localhost\r\n", "")).0,
            status,
            "{head}"
        );
    }
    let body = r#"{"prompt":"Once","max_tokens":2,"n":1}"#;
    assert_eq!(
        exchange(
            &server.address,
            &request("POST /v1/completions", "Host: evil.example:18080\r\n", body)
        )
        .0,
        403
    );
}

#[test]
fn origins_of_other_sites_are_refused() {
    let server = Served::new(&cpu(), 1, 1, |options| options.allowed_hosts(["tales.example"]));
    let origin = |origin: &str| ask(&server, &format!("Host: localhost\r\nOrigin: {origin}\r\n"));
    for own in [
        "http://localhost:3000",
        "https://127.0.0.1",
        "http://[::1]:5173",
        "https://tales.example",
        "tauri://localhost",
    ] {
        assert_eq!(origin(own), 200, "{own}");
    }
    for other in [
        "null",
        "http://evil.example",
        "https://tales.example.evil.example",
        "file://",
        "http://10.0.0.1",
        "localhost",
        "",
    ] {
        assert_eq!(origin(other), 403, "{other}");
    }
    assert_eq!(
        ask(&server, "Host: localhost\r\nOrigin: http://localhost\r\nOrigin: http://localhost\r\n"),
        403
    );
}

#[test]
fn other_listeners_check_hosts_if_told() {
    let any = Served::at("0.0.0.0:0", &cpu(), 1, 1, |options| options);
    assert_eq!(
        (ask(&any, "Host: evil.example\r\n"), ask(&any, "Host: x\r\nOrigin: null\r\n")),
        (200, 200)
    );
    let told =
        Served::at("0.0.0.0:0", &cpu(), 1, 1, |options| options.allowed_hosts(["tales.example"]));
    for (host, status) in
        [("evil.example", 403), ("tales.example", 200), ("192.0.2.7:8080", 200), ("localhost", 200)]
    {
        assert_eq!(ask(&told, &format!("Host: {host}\r\n")), status, "{host}");
    }
}

/// The page opened by an address asks with that address in both headers. A name that points here
/// (DNS rebinding) is a name in both.
#[test]
fn the_page_works_by_address() {
    let told =
        Served::at("0.0.0.0:0", &cpu(), 1, 1, |options| options.allowed_hosts(["tales.example"]));
    let loopback = Served::new(&cpu(), 1, 1, |options| options.allowed_hosts(["tales.example"]));
    let both = |server: &Served, host: &str, origin: &str| {
        ask(server, &format!("Host: {host}\r\nOrigin: {origin}\r\n"))
    };
    for (host, origin, status) in [
        ("192.0.2.7:8080", "http://192.0.2.7:8080", 200),
        ("192.0.2.7", "https://192.0.2.7", 200),
        ("[2001:DB8::7]:8080", "http://[2001:db8::7]:8080", 200),
        ("192.0.2.7:8080", "http://192.0.2.7:8081", 403),
        ("192.0.2.7:8080", "http://192.0.2.8:8080", 403),
        ("192.0.2.7:8080", "192.0.2.7:8080", 403),
        ("tales.example", "http://192.0.2.7", 403),
        ("evil.example:8080", "http://evil.example:8080", 403),
    ] {
        assert_eq!(both(&told, host, origin), status, "{host} {origin}");
    }
    assert_eq!(both(&loopback, "192.0.2.7:8080", "http://192.0.2.7:8080"), 403);
}

#[test]
fn any_of_several_keys_is_accepted() {
    let server = Served::new(&cpu(), 1, 1, |options| options.keys(["sesame", "lentil", "pea"]));
    let status = |credentials: &str, head: &str| {
        send(&server.address, head, &[("Authorization", credentials)], b"").unwrap().status
    };
    for credentials in ["Bearer sesame", "bearer lentil", "BEARER   pea", "Bearer  lentil  "] {
        assert_eq!(status(credentials, "GET /v1/models"), 200, "{credentials}");
    }
    for credentials in [
        "Bearer",
        "Bearer ",
        "Bearersesame",
        "Bearer sesame lentil",
        "Bearer sesamf",
        "Bearer lent",
        "Basic pea",
        "pea",
    ] {
        assert_eq!(status(credentials, "GET /v1/models"), 401, "{credentials}");
    }
    let twice = [("Authorization", "Bearer pea"), ("Authorization", "Bearer pea")];
    assert_eq!(send(&server.address, "GET /v1/models", &twice, b"").unwrap().status, 401);
}

#[test]
fn without_a_key_nothing_else_is_told() {
    let server = Served::new(&cpu(), 1, 1, |options| options.keys(["sesame"]));
    for head in [
        "GET /nowhere",
        "DELETE /v1/models",
        "GET /v1/models/%ff",
        "GET /v1/models/a",
        "POST /v1/embeddings",
        "POST /v1/responses",
        "GET /metrics",
        "GET /index.html",
        "GET /health/",
    ] {
        let answer = send(&server.address, head, &[], b"").unwrap();
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (401, &json!("invalid_api_key")),
            "{head}"
        );
    }
    let answer =
        send(&server.address, "GET /v1/models/%ff", &[("Authorization", "Bearer sesame")], b"")
            .unwrap();
    let (status, error) = (answer.status, answer.json()["error"].clone());
    assert!(
        status == 404
            && error["message"].as_str().unwrap().contains("%ff")
            && error["code"] == "model_not_found",
        "{error}"
    );
    assert_eq!(get(&server.address, "/health").status, 200);
}

#[test]
fn options_that_admit_nobody_are_refused() {
    let refused = |options: Options| {
        Server::new(cpu().batch(BatchOptions::new(1, 64)).unwrap(), options)
            .err()
            .unwrap()
            .to_string()
    };
    let options = || Options::new("tales");
    assert!(refused(options().keys([""])).contains("API key"));
    assert!(refused(options().keys(["ok", "not\nok"])).contains("API key"));
    assert!(refused(options().allowed_hosts(["tales.example:80"])).contains("without a port"));
    assert!(refused(options().allowed_hosts(["http://tales.example"])).contains("without a port"));
    assert!(refused(options().cors_origins(["app.example"])).contains("not an origin"));
    assert!(refused(options().cors_origins(["https://app.example/x"])).contains("not an origin"));
    assert!(refused(options().max_connections(0)).contains("0 connections"));
    assert!(refused(options().max_pending_bytes(1 << 20)).contains("fit twice"));
}

/// Which prompts others have sent is told by the time, and by the count of cached tokens.
#[test]
fn keys_and_salts_share_no_prefixes() {
    let prompt = "Once upon a time there was a bear who lived in a wood and ate honey all day long, and in the night too.";
    let cached = |server: &Served, key: &str, salt: Value| -> u64 {
        let body = json!({ "prompt": prompt, "max_tokens": 1, "cache_salt": salt }).to_string();
        let headers = [("Authorization", &*format!("Bearer {key}"))];
        let answer = send(&server.address, "POST /v1/completions", &headers, body.as_bytes())
            .unwrap()
            .json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let server = Served::new(&cpu(), 4, 1, |options| options.keys(["a", "b"]));
    assert_eq!(
        [
            cached(&server, "a", Value::Null),
            cached(&server, "b", Value::Null),
            cached(&server, "a", "x".into())
        ],
        [0; 3]
    );
    assert!(cached(&server, "a", Value::Null) > 16 && cached(&server, "a", "x".into()) > 16);
    assert_eq!(cached(&server, "b", "x".into()), 0, "the salt is the key's own");
    let single = Served::new(&cpu(), 4, 1, |options| options);
    assert_eq!(
        [
            cached(&single, "", Value::Null),
            cached(&single, "", "x".into()),
            cached(&single, "", "y".into())
        ],
        [0; 3]
    );
    assert!(cached(&single, "", "x".into()) > 16 && cached(&single, "", Value::Null) > 16);
    let long = post(
        &single.address,
        "/v1/completions",
        &json!({ "prompt": "Hi", "cache_salt": "x".repeat(257) }),
    );
    assert_eq!((long.status, &long.json()["error"]["param"]), (400, &json!("cache_salt")));
}
