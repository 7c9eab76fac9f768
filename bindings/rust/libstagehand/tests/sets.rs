//! Sets: members in slots that they share. Every use compares all bytes of each member.

mod common;

use common::*;
use libstagehand::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BYTES: u64 = 6 * KIB + 40;

fn descs(count: u64) -> (Vec<BlockDesc>, Vec<Vec<u8>>) {
    let wanted: Vec<Vec<u8>> = (0..count).map(|i| contents(i, BYTES)).collect();
    (wanted.iter().map(|bytes| BlockDesc::from_source(Source::owned(bytes.clone()))).collect(), wanted)
}

fn options(slots: u64, call_members: u64) -> SetOptions {
    SetOptions { slots, call_members, name: Some("experts".to_owned()), ..Default::default() }
}

#[track_caller]
fn compare_members(members: &Members<'_>, numbers: &[u32], wanted: &[Vec<u8>]) {
    assert_eq!(members.slots().len(), numbers.len());
    for (index, &number) in numbers.iter().enumerate() {
        let bytes = members.bytes(index).unwrap();
        assert!(bytes == wanted[number as usize], "member {number}");
        let offset = bytes.as_ptr() as u64 - members.address() as u64;
        assert_eq!(offset, u64::from(members.slots()[index]) * members.stride());
        assert!(offset + BYTES <= members.pool_bytes());
    }
    assert!(members.bytes(numbers.len()).is_none());
}

#[test]
fn members_are_in_their_slots_whatever_came_before() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let (descs, wanted) = descs(12);
    let set = runtime.register_set(descs, &options(4, 3)).unwrap();
    assert_eq!(set.blocks().len(), 12);
    let mut uses = 0;
    for k in 0..60u32 {
        let numbers: Vec<u32> = (0..1 + k % 3).map(|i| (k * 5 + i * 7) % 12).collect();
        let members = set.acquire(&numbers, Stream::host()).unwrap();
        compare_members(&members, &numbers, &wanted);
        assert!(members.slots().iter().all(|&slot| slot < 4));
        uses += numbers.len() as u64;
        if k % 2 == 0 {
            members.release().unwrap();
        }
    }
    let info = set.info().unwrap();
    assert_eq!((info.members, info.slots, info.stride, info.uses), (12, 4, BYTES.next_multiple_of(256), uses));
    assert!(info.evictions > 0 && info.hits + info.evictions + 4 == uses, "{info:?}");
    assert!(runtime.stats().unwrap().held_bytes > 0);
}

#[test]
fn a_drop_releases_and_a_leak_stays_held() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let (descs, wanted) = descs(4);
    let set = runtime.register_set(descs, &options(2, 2)).unwrap();
    let held = |number: usize| runtime.block_info(set.blocks()[number]).unwrap().held;

    let twice = set.acquire(&[0, 1, 0], Stream::host()).unwrap();
    compare_members(&twice, &[0, 1, 0], &wanted);
    assert_eq!((held(0), held(1)), (2, 1));
    let full = set.acquire(&[2], Stream::host()).unwrap_err();
    assert!(full.status() == Status::HELD && full.text().contains("\"experts\""), "{full}");
    assert_eq!(status(set.unregister()), Status::INVALID_STATE);
    drop(twice);
    assert_eq!((held(0), held(1)), (0, 0));

    set.acquire(&[1], Stream::host()).unwrap().release().unwrap();
    assert_eq!(held(1), 0);
    std::mem::forget(set.acquire(&[3], Stream::host()).unwrap());
    assert_eq!(held(3), 1);
    drop(set.acquire(&[], Stream::host()).unwrap());
    compare_members(&set.acquire(&[2], Stream::host()).unwrap(), &[2], &wanted);
}

#[test]
fn a_call_that_is_larger_than_the_pool_is_told_what_would_do() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let (descs, wanted) = descs(6);
    let set = runtime.register_set(descs, &options(3, 2)).unwrap();
    let refused = set.acquire(&[0, 1, 2, 3], Stream::host()).unwrap_err();
    assert_eq!((refused.status(), refused.group()), (Status::BUDGET, Group::Memory));
    assert!(refused.text().contains("at once") && refused.text().contains("3 slots"), "{refused}");
    compare_members(&set.acquire(&[3, 4, 5], Stream::host()).unwrap(), &[3, 4, 5], &wanted);
}

#[test]
fn streams_wait_for_members_and_members_may_be_there_already() {
    let device = host(256 * KIB);
    let stream = device.stream().unwrap();
    let runtime = Runtime::new(&device).unwrap();
    let (descs, wanted) = descs(4);
    let set = runtime.register_set(descs, &options(0, 2)).unwrap();
    let members = set.acquire(&[2, 3], &stream).unwrap();
    assert!(members.bytes(0).is_none(), "the bytes need not be there yet");
    let (first, want) = (members.address() as usize + (u64::from(members.slots()[0]) * members.stride()) as usize, 2);
    let right = Arc::new(AtomicU64::new(0));
    let (counted, want) = (right.clone(), wanted[want].clone());
    let look = move || {
        // SAFETY: the closure runs behind the load, and the members are released behind it on the same stream.
        let bytes = unsafe { std::slice::from_raw_parts(first as *const u8, want.len()) };
        counted.fetch_add(u64::from(bytes == want), Ordering::SeqCst);
    };
    stream.launch(std::time::Duration::from_millis(1), look).unwrap();
    members.release().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(right.load(Ordering::SeqCst), 1);

    let again = set.try_acquire(&[2, 3], Stream::host()).unwrap().expect("they are there");
    assert_ne!(again.flags() & sys::SH_VIEW_HIT, 0);
    compare_members(&again, &[2, 3], &wanted);
}

#[test]
fn guesses_are_hits() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let (descs, wanted) = descs(8);
    let set = runtime.register_set(descs, &SetOptions { group_members: 4, ..options(4, 2) }).unwrap();
    drop(set.acquire(&[0], Stream::host()).unwrap());
    set.prefetch(&[1, 2], Some(&[0.5, 0.9])).unwrap();
    compare_members(&set.acquire(&[1, 2], Stream::host()).unwrap(), &[1, 2], &wanted);
    assert_eq!(set.info().unwrap().hits, 2);
    set.prefetch(&[3], None).unwrap();
    let unequal = set.prefetch(&[1, 2], Some(&[0.5])).unwrap_err();
    assert!(unequal.status() == Status::INVALID_ARGUMENT && unequal.text().contains("1 chances for 2"), "{unequal}");
}

#[test]
fn an_unregistered_set_drops_its_sources() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let shared: Vec<Arc<Vec<u8>>> = (0..3).map(|i| Arc::new(contents(i, BYTES))).collect();
    let kept = || shared.iter().map(Arc::strong_count).sum::<usize>();
    let descs = || shared.iter().map(|bytes| BlockDesc::from_source(Source::shared(bytes.clone())));
    let refused = runtime.register_set(descs(), &options(2, 3)).unwrap_err();
    assert!(refused.text().contains("call_members is 3"), "{refused}");
    assert_eq!((status(runtime.register_set([], &options(0, 0))), kept()), (Status::INVALID_ARGUMENT, 3));

    let set = runtime.register_set(descs(), &SetOptions::default()).unwrap();
    let again = set.clone();
    assert_eq!(kept(), 6);
    runtime.unregister_blocks(&set.blocks()[1..2]).unwrap();
    assert_eq!(kept(), 5);
    assert_eq!(status(set.acquire(&[1], Stream::host())), Status::INVALID_HANDLE);
    drop(set);
    drop(again.acquire(&[0, 2], Stream::host()).unwrap());
    again.unregister().unwrap();
    assert_eq!(kept(), 3);
    for refused in [again.unregister(), again.info().map(drop), again.prefetch(&[0], None)] {
        assert_eq!(status(refused), Status::INVALID_HANDLE);
    }
    assert_eq!(status(again.acquire(&[0], Stream::host())), Status::INVALID_HANDLE);
}
