//! Tests several models on one device: protections, reservations, guests and scopes, and their ends by guards.

mod common;

use common::*;
use libstagehand::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn model(device: &Device, name: &str, count: u64, bytes: u64) -> (Runtime, Vec<Block>, Vec<Vec<u8>>) {
    let options = RuntimeOptions { name: Some(name.to_owned()), ..Default::default() };
    let runtime = Runtime::with_options(device, &options).unwrap();
    let wanted: Vec<Vec<u8>> = (0..count).map(|i| contents(i, bytes)).collect();
    let blocks = runtime
        .register_blocks(wanted.iter().map(|bytes| BlockDesc::from_source(Source::owned(bytes.clone()))))
        .unwrap();
    (runtime, blocks, wanted)
}

#[test]
fn protections_end_with_their_guards() {
    let device = host(128 * KIB);
    let (runtime, blocks, wanted) = model(&device, "one", 6, 20_000);
    compare(&runtime, &blocks, &wanted);
    let outer = runtime.protect(&blocks).unwrap();
    let inner = runtime.protect(&blocks[..1]).unwrap();
    assert_eq!(runtime.block_info(blocks[0]).unwrap().protections, 2);
    drop(inner);
    assert_eq!(runtime.block_info(blocks[0]).unwrap().protections, 1);
    assert!(device.memory().unwrap().protected_bytes > 0);
    drop(outer);
    assert_eq!(runtime.block_info(blocks[0]).unwrap().protections, 0);
    assert_eq!(device.memory().unwrap().protected_bytes, 0);
}

#[test]
fn reservations_leave_room_for_guests_or_refuse_them() {
    let device = host(128 * KIB);
    let (main, blocks, wanted) = model(&device, "main", 8, 30_000);
    let (guest, guest_blocks, guest_wanted) = model(&device, "guest", 2, 20_000);
    compare(&main, &blocks, &wanted);

    let all = main.reserve(128 * KIB, Priority::Primary).unwrap();
    assert_eq!(device.memory().unwrap().reserved_bytes, 128 * KIB);
    let refused = main.as_guest(&guest, &GuestOptions::default()).unwrap_err();
    assert_eq!((refused.status(), refused.group()), (Status::BUDGET, Group::Memory));
    assert!(refused.text().contains("main"), "the text should name the runtime that has reserved: {refused}");
    drop(all);
    assert_eq!(device.memory().unwrap().reserved_bytes, 0);

    let part = main.reserve(72 * KIB, Priority::Secondary).unwrap();
    let visit = main.as_guest(&guest, &GuestOptions { bytes: 48 * KIB, ..Default::default() }).unwrap();
    compare(&guest, &guest_blocks, &guest_wanted);
    compare(&main, &blocks, &wanted);
    assert_eq!(device.memory().unwrap().guest_bytes, 48 * KIB);
    visit.end().unwrap();
    assert_eq!((device.memory().unwrap().guest_bytes, guest.stats().unwrap().held_bytes), (0, 0));
    drop(part);

    // The scope also ends if a failure leaves its block of code.
    let left = || -> Result<()> {
        let _visit = main.as_guest(&guest, &GuestOptions { shrink: true, ..Default::default() })?;
        Err(guest.unregister_blocks(&[Block::from_raw(77)]).unwrap_err())
    };
    assert_eq!(status(left()), Status::INVALID_HANDLE);
    assert_eq!(device.memory().unwrap().guest_bytes, 0);
}

#[test]
fn a_reservation_is_ended_by_the_guard_of_its_last_terms() {
    let device = host(128 * KIB);
    let (main, _, _) = model(&device, "main", 8, 30_000);
    let reserved = || device.memory().unwrap().reserved_bytes;
    let mut guard = [main.reserve(32 * KIB, Priority::Primary).unwrap()];
    assert_eq!(reserved(), 32 * KIB);
    // The assignment drops the first guard after the second reservation was made.
    guard[0] = main.reserve(64 * KIB, Priority::Primary).unwrap();
    assert_eq!(reserved(), 64 * KIB);
    let refused = main.reserve(256 * KIB, Priority::Primary);
    assert_eq!((status(refused), reserved()), (Status::BUDGET, 64 * KIB));
    let inner = main.reserve(96 * KIB, Priority::Secondary).unwrap();
    drop(guard);
    assert_eq!(reserved(), 96 * KIB);
    drop(inner);
    assert_eq!(reserved(), 0);
}

#[test]
fn a_step_waits_for_its_share_until_others_have_ended_theirs() {
    let device = host(64 * KIB);
    let (first, blocks, wanted) = model(&device, "first", 4, 30_000);
    compare(&first, &blocks, &wanted);
    let waiting = |share_wait| {
        let runtime = Runtime::with_options(&device, &RuntimeOptions { share_wait, ..Default::default() }).unwrap();
        let wanted = vec![contents(9, 10_000)];
        let blocks = runtime.register_blocks([BlockDesc::from_source(Source::owned(wanted[0].clone()))]).unwrap();
        (runtime, blocks, wanted)
    };
    let (impatient, few, _) = waiting(Duration::from_millis(30));
    let (patient, some, theirs) = waiting(Duration::from_secs(60));
    std::thread::scope(|scope| {
        let step = first.step().unwrap();
        let view = first.acquire(blocks[0], Stream::host()).unwrap();
        let began = Instant::now();
        let busy = impatient.step().and_then(|_step| impatient.acquire(few[0], Stream::host()).map(drop));
        assert_eq!(status(busy), Status::BUSY);
        assert!(began.elapsed() >= Duration::from_millis(30));
        let waits = scope.spawn(|| compare(&patient, &some, &theirs));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waits.is_finished());
        drop(view);
        drop(step);
        first.trim(0).unwrap();
        waits.join().unwrap();
    });
}

#[test]
fn scopes_keep_memory_and_trims_give_it_back() {
    let device = host(256 * KIB);
    let (runtime, blocks, wanted) = model(&device, "one", 4, 30_000);
    compare(&runtime, &blocks, &wanted);
    let outer = runtime.keep_resident().unwrap();
    let inner = runtime.keep_resident().unwrap();
    inner.end().unwrap();
    assert!(device.memory().unwrap().protected_bytes > 0);
    // A scope may be ended on another thread (residency.h).
    std::thread::scope(|scope| scope.spawn(move || outer.end().unwrap()).join().unwrap());
    assert_eq!(device.memory().unwrap().protected_bytes, 0);
    assert_eq!(runtime.trim(0).unwrap(), 0);
    compare(&runtime, &blocks, &wanted);
}

#[test]
fn pressure_is_told_while_a_view_is_held() {
    let device = host(128 * KIB);
    let (holder, blocks, _) = model(&device, "holder", 4, 30_000);
    let (other, _other_blocks, _) = model(&device, "other", 4, 20_000);
    let wanted = Arc::new(AtomicU64::new(0));
    let told = wanted.clone();
    let note = move |bytes| {
        told.fetch_add(bytes, Ordering::SeqCst);
    };
    holder.set_pressure(note).unwrap();
    let step = holder.step().unwrap();
    let view = holder.acquire(blocks[0], Stream::host()).unwrap();
    // The other model may or may not get this memory now. The holder is notified in both cases.
    let _ = other.reserve(64 * KIB, Priority::Primary).map(std::mem::forget);
    let _ = other.step().map(drop);
    assert!(wanted.load(Ordering::SeqCst) > 0);
    drop(view);
    step.end().unwrap();
    holder.clear_pressure().unwrap();
    assert_eq!(Arc::strong_count(&wanted), 1, "the closure is gone");
}
