//! Tests memory that leaves the device on the host's backend, where device memory is memory of the process: tags pause
//! and resume, and allocations end by their guards.

mod common;

use std::sync::{Arc, Mutex};

use common::*;
use libstagehand::*;

const MIB: u64 = 1 << 20;

fn device() -> HostDevice {
    host_with(&DeviceOptions {
        budget_bytes: 48 * MIB,
        backend_options: Some("capacity=64MiB;poison=1".to_owned()),
        ..Default::default()
    })
}

fn tagged(device: &Device, bytes: u64, tag: &str, contents: Contents) -> Allocation {
    device.alloc(bytes, &AllocOptions { tag: Some(tag), contents, ..Default::default() }).unwrap()
}

fn fill(memory: &Allocation, seed: u64) {
    let from = contents(seed, memory.bytes());
    // SAFETY: the memory has this size, is memory of the process, and its tag runs.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), memory.address() as *mut u8, from.len()) };
}

fn read(memory: &Allocation) -> Vec<u8> {
    // SAFETY: the memory has this size, is memory of the process, and its tag runs.
    unsafe { std::slice::from_raw_parts(memory.address() as *const u8, memory.bytes() as usize) }.to_vec()
}

#[test]
fn memory_leaves_and_comes_back() {
    let device = device();
    let weights = tagged(&device, 4 * MIB, "weights", Contents::Default);
    let cache = tagged(&device, 2 * MIB, "cache", Contents::Zero);
    let address = weights.address();
    fill(&weights, 1);
    fill(&cache, 2);
    let used = device.memory().unwrap().used_bytes;
    let gone = device.pause(&PauseOptions::default()).unwrap();
    assert_eq!((gone.tag_count, gone.device_bytes, gone.copied_bytes), (2, 6 * MIB, 4 * MIB));
    assert_eq!(device.memory().unwrap().used_bytes, used - 6 * MIB);
    let all = device.occupancy(None).unwrap();
    assert_eq!((all.state, all.staged_bytes, all.tag.as_str()), (sys::SH_OCCUPANCY_RELEASED, 4 * MIB, ""));
    assert!(!all.is_running());
    assert_eq!(device.resume(&ResumeOptions::default()).unwrap().device_bytes, 6 * MIB);
    assert_eq!(weights.address(), address);
    assert!(read(&weights) == contents(1, 4 * MIB) && read(&cache) == vec![0; 2 * MIB as usize]);
    assert_eq!(device.trim_occupancy().unwrap(), 4 * MIB);
    assert_eq!(device.trim_occupancy().unwrap(), 0);
}

#[test]
fn tags_are_paused_one_by_one() {
    let device = device();
    let weights = tagged(&device, 2 * MIB, "weights", Contents::Stage);
    let _cache = tagged(&device, 2 * MIB, "cache", Contents::Drop);
    fill(&weights, 1);
    let tags = Some(&["weights"][..]);
    let lost = device.pause(&PauseOptions { tags, contents: Contents::Zero, ..Default::default() }).unwrap();
    assert_eq!((lost.tag_count, lost.copied_bytes), (1, 0));
    assert_eq!(device.occupancy(None).unwrap().state, sys::SH_OCCUPANCY_MIXED);
    assert!(device.occupancy(Some("cache")).unwrap().is_running());
    let again = device.pause(&PauseOptions { tags, repeat: true, ..Default::default() }).unwrap();
    assert_eq!(again.tag_count, 0);
    assert_eq!(device.resume(&ResumeOptions { tags, no_wait: true, repeat: false }).unwrap().tag_count, 1);
    assert!(read(&weights) == vec![0; 2 * MIB as usize]);
    assert_eq!(device.resume(&ResumeOptions { tags, repeat: true, ..Default::default() }).unwrap().tag_count, 0);
    let none = Some(&[][..]);
    assert_eq!(device.pause(&PauseOptions { tags: none, ..Default::default() }).unwrap().tag_count, 0);
    assert_eq!(device.resume(&ResumeOptions { tags: none, ..Default::default() }).unwrap().tag_count, 0);
    assert!(device.occupancy(None).unwrap().is_running());
    let tags: Vec<String> = device.occupancies().unwrap().into_iter().map(|info| info.tag).collect();
    assert_eq!(tags, ["cache", "weights"]);
}

#[test]
fn what_has_not_changed_is_not_copied_again() {
    let device = device();
    let weights = tagged(&device, 6 * MIB, "weights", Contents::Stage);
    let fixed = device.alloc(2 * MIB, &AllocOptions { constant: true, ..Default::default() }).unwrap();
    fill(&weights, 1);
    let cycle = |options: &PauseOptions<'_>| {
        let gone = device.pause(options).unwrap();
        device.resume(&ResumeOptions::default()).unwrap();
        (gone.copied_bytes, gone.unchanged_bytes)
    };
    let all = PauseOptions { copy_all: true, ..Default::default() };
    assert_eq!(cycle(&PauseOptions::default()), (8 * MIB, 0));
    assert_eq!(cycle(&PauseOptions::default()), (0, 8 * MIB));
    assert!(read(&weights) == contents(1, 6 * MIB));
    // A change that was promised not to come is not seen.
    fill(&fixed, 2);
    assert_eq!(cycle(&PauseOptions::default()), (0, 8 * MIB));
    assert_eq!(cycle(&all), (8 * MIB, 0));
    let unused = [MemoryRange { address: weights.address(), bytes: 2 * MIB }];
    let part = PauseOptions { unused: &unused, ..all };
    assert_eq!(cycle(&part), (6 * MIB, 0));
    assert!(read(&weights)[2 * MIB as usize..] == contents(1, 6 * MIB)[2 * MIB as usize..]);
}

#[test]
fn contents_of_a_format_cross_the_link_packed() {
    let device = device();
    let bf16 = Some(WeightFormat::Bf16);
    let weights = device.alloc(4 * MIB, &AllocOptions { format: bf16, ..Default::default() }).unwrap();
    let rest = tagged(&device, 2 * MIB, "rest", Contents::Stage);
    fill(&weights, 1);
    fill(&rest, 2);
    assert_eq!(device.pause(&PauseOptions::default()).unwrap().packed_bytes, 4 * MIB);
    assert_eq!(device.resume(&ResumeOptions::default()).unwrap().packed_bytes, 4 * MIB);
    let all = PauseOptions { format: bf16, copy_all: true, ..Default::default() };
    assert_eq!(device.pause(&all).unwrap().packed_bytes, 6 * MIB);
    device.resume(&ResumeOptions::default()).unwrap();
    assert!(read(&weights) == contents(1, 4 * MIB) && read(&rest) == contents(2, 2 * MIB));
}

#[test]
fn contents_can_be_read_while_they_are_away() {
    let device = device();
    let weights = tagged(&device, 4 * MIB, "weights", Contents::Stage);
    fill(&weights, 1);
    device.pause(&PauseOptions { prepare: true, ..Default::default() }).unwrap();
    device.pause(&PauseOptions { tags: Some(&[]), prepare: true, ..Default::default() }).unwrap();
    let mut part = vec![0; MIB as usize];
    device.pause(&PauseOptions::default()).unwrap();
    device.read_released(weights.address() + MIB, &mut part).unwrap();
    assert!(part == contents(1, 4 * MIB)[MIB as usize..2 * MIB as usize]);
    device.resume(&ResumeOptions::default()).unwrap();
    assert!(read(&weights) == contents(1, 4 * MIB));
}

#[test]
fn functions_are_called_before_a_pause_and_after_a_resume() {
    let device = device();
    let _weights = tagged(&device, 2 * MIB, "weights", Contents::Stage);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let noted = |name: &'static str| {
        let calls = Arc::clone(&calls);
        move |tags: &[&str]| calls.lock().unwrap().push(format!("{name} {}", tags.join(" ")))
    };
    let (before, mut refusal) = (noted("before"), None);
    let before = move |tags: &[&str]| {
        before(tags);
        Ok(())
    };
    let first = device.on_pause(before, noted("after")).unwrap();
    let refuses = Arc::new(Mutex::new(0));
    let asked = Arc::clone(&refuses);
    let second = device.on_pause(
        move |_| match *asked.lock().unwrap() {
            0 => Ok(()),
            1 => Err(std::io::Error::other("the link is busy")),
            _ => panic!("meant to panic, for its text"),
        },
        |_| panic!("meant to panic, and lost"),
    );
    let second = second.unwrap();
    assert!(format!("{second:?}").contains("PauseCallbacks"));
    device.pause(&PauseOptions::default()).unwrap();
    device.resume(&ResumeOptions::default()).unwrap();
    assert_eq!(*calls.lock().unwrap(), ["before weights", "after weights"]);
    for (how, text) in [(1, "the link is busy"), (2, "meant to panic, for its text")] {
        *refuses.lock().unwrap() = how;
        let refused = device.pause(&PauseOptions::default()).unwrap_err();
        assert!(refused.status() == Status::CALLBACK && refused.text().contains(text), "{refused}");
        refusal = Some(refused);
    }
    assert!(refusal.is_some() && device.occupancy(None).unwrap().is_running());
    assert_eq!(calls.lock().unwrap().len(), 6);
    drop((first, second));
    device.pause(&PauseOptions::default()).unwrap();
    device.resume(&ResumeOptions::default()).unwrap();
    assert_eq!(calls.lock().unwrap().len(), 6);
}

#[test]
fn functions_may_end_within_a_call() {
    let device = device();
    let _weights = tagged(&device, 2 * MIB, "weights", Contents::Stage);
    let held: Arc<Mutex<Option<PauseCallbacks>>> = Arc::default();
    let taken = Arc::clone(&held);
    let before = move |_: &[&str]| {
        drop(taken.lock().unwrap().take());
        Ok(())
    };
    *held.lock().unwrap() = Some(device.on_pause(before, |_| ()).unwrap());
    for _ in 0..2 {
        device.pause(&PauseOptions::default()).unwrap();
        device.resume(&ResumeOptions::default()).unwrap();
    }
    assert!(held.lock().unwrap().is_none());
}

#[test]
fn allocations_end_with_their_guards() {
    let device = device();
    let count = || device.occupancy(None).unwrap().allocations;
    let memory = device.alloc(100, &AllocOptions::default()).unwrap();
    assert_eq!((count(), memory.bytes(), memory.device().as_raw()), (1, 100, device.as_raw()));
    assert_eq!(device.occupancy(Some("default")).unwrap().bytes, 100);
    memory.free().unwrap();
    assert_eq!(count(), 0);
    let memory = device.alloc(100, &AllocOptions::default()).unwrap();
    std::thread::spawn(move || drop(memory)).join().unwrap();
    assert_eq!(count(), 0);
    let away = tagged(&device, 2 * MIB, "away", Contents::Stage);
    device.pause(&PauseOptions { tags: Some(&["away"]), ..Default::default() }).unwrap();
    drop(away);
    let left = device.occupancy(Some("away")).unwrap();
    assert_eq!((left.allocations, left.staged_bytes), (0, 0));
}

#[test]
fn allocations_keep_their_device() {
    let turn = turn();
    let options = DeviceOptions { budget_bytes: 48 * MIB, ..Default::default() };
    let device = Device::open_with("host", &options).unwrap();
    let memory = tagged(&device, 2 * MIB, "weights", Contents::Stage);
    drop(device);
    fill(&memory, 3);
    memory.device().pause(&PauseOptions::default()).unwrap();
    memory.device().resume(&ResumeOptions::default()).unwrap();
    assert!(read(&memory) == contents(3, 2 * MIB));
    memory.free().unwrap();
    drop(turn);
}

#[test]
fn a_tag_with_a_nul_is_named() {
    let device = device();
    let cut = device.alloc(1, &AllocOptions { tag: Some("a\0b"), ..Default::default() }).unwrap_err();
    assert!(cut.status() == Status::INVALID_ARGUMENT && cut.text().contains("NUL"), "{cut}");
    assert!(device.occupancies().unwrap().is_empty());
}
