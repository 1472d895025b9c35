//! A hub that answers whatever a test wants, byte by byte, and the ground around a cache on which
//! nothing may change.

use crate::{COMMIT, said};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
};

/// The head of a request.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    fn read(stream: &TcpStream) -> Option<Self> {
        let mut lines = BufReader::new(stream)
            .lines()
            .map_while(Result::ok)
            .take_while(|line| !line.is_empty());
        let path = lines.next()?.split(' ').nth(1)?.to_owned();
        let headers = lines.filter_map(|line| {
            line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        });
        Some(Self { path, headers: headers.collect() })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    pub fn is_listing(&self) -> bool {
        self.path.contains("/api/models/")
    }

    /// Whether only the size and version of a file are asked for.
    pub fn is_metadata(&self) -> bool {
        self.header("range") == Some("bytes=0-0")
    }

    pub fn file(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The first byte that is asked for.
    pub fn start(&self) -> usize {
        let range =
            self.header("range").and_then(|range| range.strip_prefix("bytes=")?.split('-').next());
        range.map_or(0, |start| start.parse().unwrap())
    }
}

pub type Requests = Arc<Mutex<Vec<Request>>>;

/// Serves an address until the process ends: a thread and an answer for each request. Returns the
/// URL, and the requests so far.
pub fn serve(
    address: &str,
    answer: impl Fn(&Request, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
) -> (String, Requests) {
    let listener = TcpListener::bind(address).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (requests, answer) = (Requests::default(), Arc::new(answer));
    let log = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer, log) = (stream.unwrap(), answer.clone(), log.clone());
            std::thread::spawn(move || {
                let Some(request) = Request::read(&stream) else { return };
                log.lock().unwrap().push(request.clone());
                // Whoever does not like an answer closes the connection.
                let _ = answer(&request, &mut stream);
            });
        }
    });
    (url, requests)
}

/// Answers with a head and a body of the announced length.
pub fn respond(
    stream: &mut TcpStream,
    status: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<()> {
    head(stream, status, &[headers, &[("content-length", &body.len().to_string())]].concat())?;
    stream.write_all(body)
}

pub fn head(stream: &mut TcpStream, status: &str, headers: &[(&str, &str)]) -> io::Result<()> {
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    stream.write_all(format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}\r\n").as_bytes())
}

/// Answers with the bytes of a file that are asked for.
pub fn send(request: &Request, stream: &mut TcpStream, etag: &str, bytes: &[u8]) -> io::Result<()> {
    let start = request.start();
    let body = if request.is_metadata() { &bytes[..1] } else { &bytes[start..] };
    let range = format!("bytes {start}-{}/{}", start + body.len() - 1, bytes.len());
    respond(
        stream,
        "206 Partial Content",
        &[("etag", &format!("\"{etag}\"")), ("x-repo-commit", COMMIT), ("content-range", &range)],
        body,
    )
}

/// The listing of a repository.
pub fn listing(commit: &str, names: &[&str]) -> Vec<u8> {
    let siblings: Vec<_> =
        names.iter().map(|name| serde_json::json!({ "rfilename": name })).collect();
    serde_json::json!({ "sha": commit, "siblings": siblings }).to_string().into_bytes()
}

/// The names of the smallest model that is one.
pub const NAMES: [&str; 2] = ["config.json", "model.safetensors"];
/// The content of each file of [`small`].
pub const CONTENT: [u8; 100] = [b' '; 100];

/// The SHA-256 of [`CONTENT`].
pub const DIGEST: &str = "ce7bfdc8ec698f68bd7205b8c2f9af1d5dec2fcf52f18bd358f0c598a989d744";

/// Bytes that may be under way in the buffers of both ends when a connection is closed.
pub const UNDER_WAY: usize = 12 << 20;
/// Bytes that a hostile hub sends until the connection is closed.
pub const FLOOD: usize = 100 << 20;

/// The version of a file of an honest hub.
pub fn etag(file: &str) -> String {
    file.replace('.', "-")
}

/// What the library says of [`CONTENT`], which is downloaded and then no model.
pub const NO_MODEL: &str = "the header claims";

/// A hub whose files are [`CONTENT`], but for what `answer` says: it returns whether it has
/// answered.
pub fn small(
    answer: impl Fn(&Request, &mut TcpStream) -> io::Result<bool> + Send + Sync + 'static,
) -> (String, Requests) {
    serve("127.0.0.1:0", move |request, stream| match answer(request, stream)? {
        true => Ok(()),
        false if request.is_listing() => respond(stream, "200 OK", &[], &listing(COMMIT, &NAMES)),
        false => send(request, stream, &etag(request.file()), &CONTENT),
    })
}

/// A folder with a home of a cache, and files outside of it that must stay as they are.
pub struct Ground(PathBuf);

impl Ground {
    pub fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("bitnet-ground-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        for folder in ["home/hub", "outside"] {
            fs::create_dir_all(path.join(folder)).unwrap();
        }
        fs::write(path.join("outside/sentinel"), "precious").unwrap();
        Self(path.canonicalize().unwrap())
    }

    pub fn outside(&self) -> PathBuf {
        self.0.join("outside")
    }

    pub fn cache(&self) -> PathBuf {
        self.0.join("home/hub")
    }

    pub fn repository(&self) -> PathBuf {
        self.cache().join("models--people--tales")
    }

    pub fn partial(&self, file: &str) -> PathBuf {
        self.repository().join("blobs").join(format!("{}.part", etag(file)))
    }

    /// Writes a file of the repository's folder, as if an earlier download had.
    pub fn plant(&self, path: &Path, bytes: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub fn command(&self, endpoint: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bitnet"));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
            .env("HF_ENDPOINT", endpoint)
            .env("HF_HOME", self.0.join("home"))
            .env("HF_TOKEN", "sesame");
        command.env("HF_HUB_OFFLINE", "").env_remove("HF_HUB_CACHE");
        command
    }

    pub fn info(&self, endpoint: &str) -> Output {
        self.command(endpoint, &["info", "people/tales"]).output().unwrap()
    }

    /// Runs a download that must fail with `wanted` in its error, and change nothing outside of the
    /// cache.
    pub fn refuses(&self, endpoint: &str, expected: &str) -> String {
        let before = self.around();
        let output = self.info(endpoint);
        let text = said(&output);
        assert_eq!(self.around(), before, "{text}");
        assert!(!output.status.success() && text.contains(expected), "{expected}: {text}");
        assert!(!text.contains("panicked") && !text.contains("sesame"), "{text}");
        text
    }

    /// Everything but the repository's folder and the locks. Of links, where they lead.
    pub fn around(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut around = tree(&self.0);
        around.retain(|path, _| {
            !path.starts_with(self.repository()) && !path.starts_with(self.cache().join(".locks"))
        });
        around
    }

    /// The files of the repository's folder.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        tree(&self.repository())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
        let metadata = path.symlink_metadata().unwrap();
        if metadata.is_dir() {
            files.append(&mut tree(&path));
        } else if metadata.is_symlink() {
            files.insert(
                path.clone(),
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            );
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}
