//! Tests what a process can do only once: fork, and exit with copies in flight. Each case runs in a process of its own,
//! and this program starts these processes.

mod common;

use common::*;
use libstagehand::*;
use std::process::{Command, exit};
use std::sync::Arc;
use std::time::Duration;

/// The exit status of a case that has reached its end.
const DONE: i32 = 42;

type Case = (&'static str, fn());

const CASES: [Case; 7] = [
    ("fork", fork),
    ("exit_in_flight", exit_in_flight),
    ("return_in_flight", return_in_flight),
    ("exit_with_leaks", exit_with_leaks),
    ("exit_in_a_fill", exit_in_a_fill),
    ("exit_with_a_log", exit_with_a_log),
    ("panic_in_flight", panic_in_flight),
];

fn main() {
    if let Ok(name) = std::env::var("STAGEHAND_TEST_CASE") {
        let (_, case) = CASES.iter().find(|(known, _)| *known == name).expect("a known case");
        case();
        exit(DONE);
    }
    let program = std::env::current_exe().unwrap();
    let mut failed = 0;
    for (name, _) in CASES {
        let output = Command::new(&program).env("STAGEHAND_TEST_CASE", name).output().unwrap();
        let good = output.status.code() == Some(DONE);
        println!("test {name} ... {}", if good { "ok" } else { "FAILED" });
        if !good {
            println!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
            failed += 1;
        }
    }
    println!("\ntest result: {} passed; {failed} failed", CASES.len() - failed);
    exit(if failed == 0 { 0 } else { 1 });
}

/// Makes a device with slow copies, and a model on the device.
fn slow() -> (HostDevice, Runtime, Vec<Block>) {
    let device = host_with(&DeviceOptions {
        budget_bytes: 512 * KIB,
        page_bytes: 4 * KIB,
        backend_options: Some("bandwidth=2MB/s".to_owned()),
        link_bytes_per_second: 2_000_000,
        ..Default::default()
    });
    let runtime = Runtime::new(&device).unwrap();
    let blocks = runtime
        .register_blocks(
            (0..4).map(|_| BlockDesc::from_source(Source::pinned(device.pinned_memory(256 << 10).unwrap()))),
        )
        .unwrap();
    (device, runtime, blocks)
}

/// Starts copies that stay in flight. The stream waits for them, and the thread does not.
fn begin(device: &Device, runtime: &Runtime, blocks: &[Block]) -> Stream {
    let stream = device.stream().unwrap();
    std::mem::forget(runtime.step().unwrap());
    std::mem::forget(runtime.acquire(blocks[0], &stream).unwrap());
    assert_ne!(runtime.block_info(blocks[0]).unwrap().state, sys::SH_BLOCK_UNLOADED);
    stream
}

fn exit_in_flight() {
    let (device, runtime, blocks) = slow();
    let _stream = begin(&device, &runtime, &blocks);
    exit(DONE);
}

fn return_in_flight() {
    let (device, runtime, blocks) = slow();
    let _stream = begin(&device, &runtime, &blocks);
    // All values are dropped here, in Rust's drop order, while copies are under way.
}

fn exit_with_leaks() {
    let (device, runtime, blocks) = slow();
    let stream = begin(&device, &runtime, &blocks);
    std::mem::forget((device, runtime, stream));
}

fn exit_in_a_fill() {
    let device = host(512 * KIB);
    let runtime = Arc::new(Runtime::new(&device).unwrap());
    let block = runtime
        .register_block(BlockDesc::from_source(Source::fill(100_000, |_, _| {
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        })))
        .unwrap();
    let waiting = runtime.clone();
    std::thread::spawn(move || waiting.acquire(block, Stream::host()).map(|view| view.len()));
    while runtime.block_info(block).unwrap().state == sys::SH_BLOCK_UNLOADED {
        std::thread::sleep(Duration::from_millis(1));
    }
    exit(DONE);
}

fn exit_with_a_log() {
    set_log(LogLevel::DEBUG, |_, _| std::thread::sleep(Duration::from_millis(1))).unwrap();
    let (device, runtime, blocks) = slow();
    let stream = begin(&device, &runtime, &blocks);
    std::mem::forget((device, runtime, stream));
    exit(DONE);
}

/// The panic drops everything while copies are under way. The thread's panic is the only failure.
fn panic_in_flight() {
    let failed = std::thread::spawn(|| {
        let (device, runtime, blocks) = slow();
        let stream = device.stream().unwrap();
        let _step = runtime.step().unwrap();
        let _view = runtime.acquire(blocks[0], &stream).unwrap();
        let _scope = runtime.keep_resident().unwrap();
        panic!("meant to panic, in a process");
    });
    assert_eq!(failed.join().unwrap_err().downcast_ref::<&str>(), Some(&"meant to panic, in a process"));
    assert_eq!(Device::open("host").unwrap().memory().unwrap().runtime_count, 0);
}

fn fork() {
    let device = host(512 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let wanted = [contents(1, 20_000)];
    let block = runtime.register_block(BlockDesc::from_source(Source::owned(wanted[0].clone()))).unwrap();
    let (stream, memory) = (device.stream().unwrap(), device.pinned_memory(100).unwrap());
    compare(&runtime, &[block], &wanted);

    // SAFETY: the child only calls the library, which refuses each call, and then exits.
    match unsafe { libc::fork() } {
        0 => {
            let failures = [
                status(runtime.step()),
                status(runtime.acquire(block, Stream::host())),
                status(device.memory()),
                status(stream.synchronize()),
                status(Device::open("host")),
                status(set_log(LogLevel::INFO, |_, _| {})),
            ];
            drop((stream, memory, runtime));
            let good = failures.iter().all(|&status| status == Status::FORKED);
            // SAFETY: the call ends this process.
            unsafe { libc::_exit(if good { DONE } else { 1 }) }
        }
        child => {
            let mut code = 0;
            // SAFETY: the child belongs to this process.
            assert_eq!(unsafe { libc::waitpid(child, &mut code, 0) }, child);
            assert!(libc::WIFEXITED(code) && libc::WEXITSTATUS(code) == DONE, "the child ended with {code}");
        }
    }
    compare(&runtime, &[block], &wanted);
    drop(memory);
}
