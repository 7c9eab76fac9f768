//! Tests spillers on the host's backend, where device memory of an engine is any memory of the process: tensors leave
//! and come back, and tickets and steps end by their guards.

mod common;

use common::*;
use libstagehand::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const BYTES: u64 = 8 * KIB;

/// Device memory of the engine.
struct Memory(Vec<u8>);

impl Memory {
    fn new(bytes: u64) -> Memory {
        Memory(vec![0xdd; bytes as usize])
    }

    fn tensor(seed: u64) -> Memory {
        Memory(contents(seed, BYTES))
    }

    fn address(&mut self) -> u64 {
        self.0.as_mut_ptr() as u64
    }

    /// Saves the bytes. The memory outlives the ticket in every test.
    fn save(&mut self, spiller: &Spiller, stream: &Stream, leave: Leave, storage_key: u64) -> Result<Ticket> {
        let sizes = [self.0.len() as i64];
        let address = self.address();
        let tensor =
            SavedTensor { address, element_bytes: 1, sizes: &sizes, storage_key, used_bytes: 1, ..Default::default() };
        // SAFETY: the memory is alive, and the tests write to it only when the ticket was collected or has ended.
        unsafe { spiller.spill(&tensor, stream, leave) }
    }
}

/// Brings a tensor back to memory of its own.
fn restored(ticket: &Ticket, stream: &Stream) -> Vec<u8> {
    let mut memory = Memory::new(ticket.info().unwrap().bytes);
    // SAFETY: the memory has this size, and lives until the stream has finished.
    assert_eq!(unsafe { ticket.restore(memory.address(), stream) }.unwrap(), Restored::Filled);
    if stream.as_raw() != Stream::host().as_raw() {
        stream.synchronize().unwrap();
    }
    memory.0
}

/// Makes a spiller that keeps no tensors but small ones.
fn keeps_nothing(device: &Device) -> Spiller {
    Spiller::with_options(device, &SpillerOptions { keep_bytes: Some(0), ..Default::default() }).unwrap()
}

fn collect_all(spiller: &Spiller, stream: &Stream) -> Vec<TicketId> {
    let mut tickets = Vec::new();
    spiller.collect_all(&mut tickets, stream).unwrap();
    tickets
}

#[test]
fn tensors_leave_and_come_back() {
    let device = host(256 * KIB);
    let (spiller, stream) = (keeps_nothing(&device), device.stream().unwrap());
    let mut memory: Vec<Memory> = (0..100).map(Memory::tensor).collect(); // more than one call of C names
    let tickets: Vec<Ticket> =
        memory.iter_mut().map(|one| one.save(&spiller, &stream, Leave::ByOptions, 0).unwrap()).collect();
    assert!(tickets.iter().all(|ticket| !ticket.stayed()));
    let mut gone = vec![TicketId::from_raw(7)];
    spiller.collect_all(&mut gone, &stream).unwrap();
    assert_eq!(gone[1..], tickets.iter().map(Ticket::id).collect::<Vec<_>>());
    assert_eq!(gone[0].as_raw(), 7);
    stream.synchronize().unwrap();
    drop(memory);
    for (seed, ticket) in tickets.iter().enumerate().rev() {
        assert_eq!(ticket.info().unwrap().state, sys::SH_TICKET_AWAY);
        assert!(restored(ticket, &stream) == contents(seed as u64, BYTES), "tensor {seed}");
    }
    let stats = spiller.stats().unwrap();
    assert_eq!((stats.saved, stats.spilled, stats.restored), (100, 100, 100));
    assert_eq!(stats.away_bytes, 100 * BYTES);
    drop(tickets);
    assert_eq!(spiller.stats().unwrap().away_bytes, 0);
}

#[test]
fn tensors_stay_or_leave_as_the_engine_says() {
    let device = host(256 * KIB);
    let (all, none, host) = (keeps_nothing(&device), Spiller::new(&device).unwrap(), Stream::host());
    let mut memory: Vec<Memory> = (0..3).map(Memory::tensor).collect();
    let never = memory[0].save(&all, host, Leave::Never, 0).unwrap();
    let kept = memory[1].save(&none, host, Leave::ByOptions, 0).unwrap();
    let told = memory[2].save(&none, host, Leave::Now, 0).unwrap();
    assert_eq!((never.stayed(), kept.stayed(), told.stayed()), (true, true, false));
    // SAFETY: a tensor that stays uses no memory.
    assert_eq!(unsafe { kept.restore(0, host) }.unwrap(), Restored::Kept);
    assert_eq!(kept.info().unwrap().state, sys::SH_TICKET_KEPT);
    assert_eq!(collect_all(&none, host), [told.id()]);
    assert_eq!(restored(&told, host), contents(2, BYTES));
    assert!(collect_all(&all, host).is_empty());
}

#[test]
fn strides_and_storages_choose_the_bytes() {
    let device = host(256 * KIB);
    let (spiller, host) = (keeps_nothing(&device), Stream::host());
    let mut memory = Memory::tensor(1);
    let begin = memory.address();
    let mut tensor = SavedTensor {
        address: begin + 64,
        element_bytes: 2,
        sizes: &[32, 16],
        strides: Some(&[128, 1]),
        storage_address: begin,
        storage_bytes: BYTES,
        used_bytes: 1,
        ..Default::default()
    };
    // SAFETY: the memory outlives the ticket, and nothing writes to it.
    let ticket = unsafe { spiller.spill(&tensor, host, Leave::Now) }.unwrap();
    let info = ticket.info().unwrap();
    assert_eq!((info.bytes, info.offset), (BYTES, 64), "more than half of the storage takes all of it");
    assert_eq!(collect_all(&spiller, host), [ticket.id()]);
    assert_eq!(restored(&ticket, host), memory.0);
    for (strides, said) in [(&[1][..], "1 strides for 2 dimensions"), (&[1 << 62, 1], "span")] {
        tensor.strides = Some(strides);
        // SAFETY: the calls fail.
        let refused = unsafe { spiller.spill(&tensor, host, Leave::Now) }.unwrap_err();
        assert_eq!(refused.status(), Status::INVALID_ARGUMENT);
        assert!(refused.text().contains(said), "{refused}");
    }
    assert_eq!(spiller.stats().unwrap().saved, 1);
}

#[test]
fn the_next_tensors_are_prefetched() {
    let device = host(256 * KIB);
    let (spiller, stream) = (keeps_nothing(&device), device.stream().unwrap());
    let mut memory: Vec<Memory> = (0..2).map(Memory::tensor).collect();
    let tickets: Vec<Ticket> =
        memory.iter_mut().map(|one| one.save(&spiller, &stream, Leave::ByOptions, 0).unwrap()).collect();
    assert_eq!(collect_all(&spiller, &stream).len(), 2);
    let order = [tickets[1].id(), tickets[0].id()];
    assert_eq!(spiller.upcoming(8, 0).unwrap(), order);
    assert_eq!(spiller.upcoming(1, 0).unwrap(), order[..1]);
    let mut back: Vec<Memory> = order.iter().map(|id| Memory::new(spiller.info(*id).unwrap().bytes)).collect();
    let wanted: Vec<(TicketId, u64)> = order.iter().zip(&mut back).map(|(id, to)| (*id, to.address())).collect();
    // SAFETY: `back` has the sizes, and lives until the stream has finished.
    unsafe {
        assert_eq!(status(spiller.prefetch(&[(order[0], 0)], &stream)), Status::INVALID_ARGUMENT);
        spiller.prefetch(&wanted, &stream).unwrap();
        assert_eq!(tickets[1].info().unwrap().prefetched_address, wanted[0].1);
        assert!(spiller.upcoming(8, 0).unwrap().is_empty());
        assert_eq!(tickets[1].restore(wanted[0].1, &stream).unwrap(), Restored::Filled);
        assert_eq!(spiller.restore(order[1], wanted[1].1, &stream).unwrap(), Restored::Filled);
    }
    stream.synchronize().unwrap();
    assert_eq!(spiller.stats().unwrap().prefetched, 2);
    assert!(back[0].0 == contents(1, BYTES) && back[1].0 == contents(0, BYTES));
}

#[test]
fn tickets_end_with_their_values() {
    let device = host(256 * KIB);
    let (spiller, host) = (keeps_nothing(&device), Stream::host());
    let mut memory = Memory::tensor(3);
    let ticket = memory.save(&spiller, host, Leave::ByOptions, 42).unwrap();
    let shared = memory.save(&spiller, host, Leave::ByOptions, 42).unwrap();
    assert_eq!(ticket.info().unwrap().copy, shared.info().unwrap().copy);
    let id = ticket.id();
    std::thread::spawn(move || drop(ticket)).join().unwrap();
    assert_eq!(status(spiller.info(id)), Status::INVALID_HANDLE);
    assert_eq!(collect_all(&spiller, host), [shared.id()]);
    assert_eq!(spiller.stats().unwrap().away_bytes, BYTES);
    drop(shared);
    assert_eq!(spiller.stats().unwrap().away_bytes, 0);
    let pinned = spiller.stats().unwrap().pool_bytes;
    assert!(spiller.trim().unwrap() >= pinned);
    assert_eq!(spiller.stats().unwrap().pool_bytes, 0);
}

#[test]
fn tickets_keep_their_spiller_and_its_streams() {
    let device = host_with(&DeviceOptions {
        budget_bytes: 256 * KIB,
        page_bytes: 4 * KIB,
        backend_options: Some("bandwidth=1MB/s".to_owned()),
        ..Default::default()
    });
    let mut memory = Memory::tensor(4);
    let (open, gate) = mpsc::channel::<()>();
    let stream_ended = Arc::new(AtomicBool::new(false));
    let (ticket, shared) = {
        let (spiller, stream, other) = (keeps_nothing(&device), device.stream().unwrap(), device.stream().unwrap());
        let ended = stream_ended.clone();
        let wait = move || {
            let _ = gate.recv_timeout(Duration::from_secs(10));
            ended.store(true, Ordering::SeqCst);
        };
        stream.launch(Duration::ZERO, wait).unwrap();
        let ticket = memory.save(&spiller, &stream, Leave::ByOptions, 42).unwrap();
        let shared = memory.save(&spiller, &other, Leave::ByOptions, 42).unwrap();
        (ticket, shared)
    };
    // The end of a stream waits for its work.
    assert!(!stream_ended.load(Ordering::SeqCst));
    // The copy has the stream of the ticket that ends first.
    drop(ticket);
    assert_eq!(shared.info().unwrap().state, sys::SH_TICKET_LEAVING);
    assert_eq!(shared.spiller().device().as_raw(), device.as_raw());
    open.send(()).unwrap();
    let again = shared.spiller().clone();
    drop(shared);
    assert_eq!(again.stats().unwrap().leaving_bytes, 0);
}

#[test]
fn steps_end_with_their_guards() {
    let device = host(256 * KIB);
    let spiller = keeps_nothing(&device);
    let path = std::env::temp_dir().join(format!("stagehand-spilling-{}.jsonl", std::process::id()));
    let lines = spiller.telemetry_start(&path).unwrap();
    for number in 0..2 {
        let _step = spiller.step(number).unwrap();
    }
    spiller.step(2).unwrap().end().unwrap();
    lines.end().unwrap();
    drop(spiller.step(3).unwrap());
    assert_eq!(spiller.stats().unwrap().steps, 4);
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn options_are_passed() {
    let device = host(256 * KIB);
    let options = SpillerOptions {
        keep_bytes: Some(0),
        checksums: true,
        least_bytes: 16,
        classes: vec![SpillClass { bytes: 64, count: 3 }],
        ..Default::default()
    };
    let spiller = Spiller::with_options(&device, &options).unwrap();
    assert!(spiller.stats().unwrap().pool_bytes >= 192);
    let (mut small, mut least) = (Memory::new(15), Memory::new(16));
    assert!(small.save(&spiller, Stream::host(), Leave::Now, 0).unwrap().stayed());
    assert!(!least.save(&spiller, Stream::host(), Leave::ByOptions, 0).unwrap().stayed());
    let bounded = SpillerOptions { keep_bytes: Some(0), to_host_copies: 1, ..Default::default() };
    let (spiller, stream) = (Spiller::with_options(&device, &bounded).unwrap(), device.stream().unwrap());
    // The stream is busy until the gate opens, so the copies cannot have ended.
    let (open, gate) = mpsc::channel::<()>();
    let wait = move || {
        let _ = gate.recv_timeout(Duration::from_secs(60));
    };
    stream.launch(Duration::ZERO, wait).unwrap();
    let mut memory: Vec<Memory> = (0..2).map(Memory::tensor).collect();
    let tickets: Vec<Ticket> =
        memory.iter_mut().map(|one| one.save(&spiller, &stream, Leave::ByOptions, 0).unwrap()).collect();
    let mut gone = Vec::new();
    spiller.collect(&mut gone, &stream).unwrap();
    assert_eq!(gone, [tickets[0].id()], "one copy may be in flight");
    spiller.collect_all(&mut gone, &stream).unwrap();
    assert_eq!(gone.len(), 2);
    open.send(()).unwrap();
    stream.synchronize().unwrap();
}
