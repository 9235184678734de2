//! What answers at the hub's address but is no hub, or refuses: told in status, nothing lost.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::place::{Place, sql, until};

/// Gives one answer to every request; tells the credentials that came.
struct Responder {
    url: String,
    credentials: Receiver<String>,
}

impl Responder {
    fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (seen, credentials) = sync_channel(100);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                respond(stream.unwrap(), answer, &seen);
            }
        });
        Self { url, credentials }
    }
}

fn respond(mut stream: TcpStream, answer: &str, seen: &SyncSender<String>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut length, mut credential) = (String::new(), 0, String::new());
    while reader.read_line(&mut line).unwrap() > 2 {
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "authorization" => value.trim().clone_into(&mut credential),
            _ => {}
        }
        line.clear();
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    // Told before it is answered; nobody may listen any more.
    seen.try_send(credential).unwrap_or_default();
    stream.write_all(answer.as_bytes()).unwrap();
}

fn place() -> Place {
    let place = Place::new();
    sql(
        &place.path("app.db"),
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES(1, 'kept')",
    );
    place
}

#[test]
fn only_a_frame_is_an_answer() {
    // (what comes back, words of the alarm)
    let cases = [
        (
            "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\ncontent-length: 63\r\n\
             connection: close\r\n\r\n\
             {\"error\": {\"code\": \"unauthorized\", \"message\": \"no such token\"}}\n",
            "refuses this device's token (401 Unauthorized): no such token",
        ),
        (
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/login\r\ncontent-length: 0\r\n\
             connection: close\r\n\r\n",
            "redirected (302 Found)",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\
             connection: close\r\n\r\nhello",
            "not a hub: 200 with text/html",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-type: application/vnd.rowtide.frame\r\n\
             content-length: 3\r\nconnection: close\r\n\r\n\u{1}??",
            "the hub's answer: frame cannot be decoded",
        ),
        (
            "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            "500 Internal Server Error",
        ),
    ];
    for (answer, words) in cases {
        let place = place();
        let responder = Responder::start(answer);
        place.configure_hub(&responder.url);
        let _agent = place.run();
        until(words, || place.status()["alarms"].to_string().contains(words));
        let status = place.status();
        assert_ne!(status["status"], "healthy", "{status}");
        assert_eq!(status["databases"][0]["tables"][0]["pending"], 1, "{status}");
    }
}

#[test]
fn a_hub_that_names_a_time_is_left_alone_until_then() {
    let place = place();
    let responder = Responder::start(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: 3600\r\ncontent-length: 0\r\n\
         connection: close\r\n\r\n",
    );
    place.configure_hub(&responder.url);
    let agent = place.run();
    responder.credentials.recv().unwrap();
    // The longest first wait without that header is below two seconds.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(responder.credentials.try_recv().is_err(), "it was asked again");
    assert!(agent.terminate().success());
}

#[test]
fn a_token_that_was_replaced_is_sent_next_and_never_logged() {
    let place = place();
    let responder = Responder::start(
        "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    );
    place.configure_hub(&responder.url);
    let agent = place.run_with("RUST_LOG", std::path::Path::new("trace"));
    assert_eq!(responder.credentials.recv().unwrap(), "Bearer t0ken");
    std::fs::write(place.path("token"), "an0ther\n").unwrap();
    until("the new token", || {
        responder.credentials.try_iter().any(|credential| credential == "Bearer an0ther")
    });
    assert!(agent.terminate().success());
    let log = place.log();
    for secret in ["t0ken", "an0ther", "kept"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
    assert!(log.contains("TRACE"), "the log is not at its fullest");
}
