//! Tests the control of a device: it answers while it lives.

mod common;

use common::*;
use libstagehand::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Makes the plugin found. Returns false if it is not built.
fn has_plugin() -> bool {
    let folder = std::env::var("CONTROL_PLUGIN_FOLDER").unwrap_or_default();
    // SAFETY: no other thread of this program reads or writes the environment now: the tests take turns.
    unsafe { std::env::set_var("STAGEHAND_BACKEND_PATH", &folder) };
    !folder.is_empty()
}

/// Returns the first line of the answer. `None`: nobody listens.
fn ask(address: &str, request: &str) -> Option<String> {
    let mut stream = UnixStream::connect(address).ok()?;
    write!(stream, "{request} HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    Some(text.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn it_answers_while_it_lives() {
    let device = host(16 << 20);
    if !has_plugin() {
        return;
    }
    let _weights = device.alloc(1 << 20, &AllocOptions { tag: Some("weights"), ..Default::default() }).unwrap();
    let path = std::env::temp_dir().join(format!("stagehand-rust-{}", std::process::id()));
    let path = path.to_str().unwrap();
    let control = device.serve_control(&ControlOptions { address: Some(path), ..Default::default() }).unwrap();
    assert_eq!(ask(path, "POST /sleep").as_deref(), Some("HTTP/1.0 200 OK"));
    assert!(!device.occupancy(Some("weights")).unwrap().is_running());
    assert_eq!(ask(path, "POST /wake_up").as_deref(), Some("HTTP/1.0 200 OK"));
    assert_eq!(ask(path, "GET /nowhere").as_deref(), Some("HTTP/1.0 404 Not Found"));
    assert_eq!((control.address(), control.port()), (path, 0));
    assert!(format!("{control:?} {:?}", control.device()).contains("Control"));
    drop(control);
    assert_eq!(ask(path, "GET /memory"), None);
}

#[test]
fn a_process_answers_without_a_device() {
    if !has_plugin() {
        return;
    }
    let path = std::env::temp_dir().join(format!("stagehand-rust-process-{}", std::process::id()));
    let address = path.to_str().unwrap();
    let monitor = monitor_start(Some(&path)).unwrap();
    assert_eq!(ask(address, "GET /snapshot").as_deref(), Some("HTTP/1.0 200 OK"));
    assert_eq!(ask(address, "GET /memory").as_deref(), Some("HTTP/1.0 404 Not Found"));
    monitor.end().unwrap();
    assert!(!path.exists());
}

#[test]
fn wrong_arguments_have_errors() {
    let device = host(16 << 20);
    if !has_plugin() {
        return;
    }
    let token = Some("0123456789abcdef");
    let status = |address, token| {
        device.serve_control(&ControlOptions { address: Some(address), token }).map(drop).unwrap_err().status()
    };
    assert_eq!(status("127.0.0.1:0", None), Status::INVALID_ARGUMENT);
    assert_eq!(status("10.0.0.1:80", token), Status::INVALID_ARGUMENT);
    assert_eq!(status("/no/such/folder", None), Status::IO);
    let control = device.serve_control(&ControlOptions { address: Some("localhost:0"), token }).unwrap();
    assert_ne!(control.port(), 0);
    assert!(!format!("{:?}", ControlOptions { address: None, token }).contains("0123"), "the token is told");
}
