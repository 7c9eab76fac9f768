//! Tests streaming from every kind of source through a small budget, and compares every byte.

mod common;

use common::*;
use libstagehand::*;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Makes a file with these contents that has no name any more.
fn file_of(bytes: &[u8]) -> Arc<File> {
    let path =
        std::env::temp_dir().join(format!("stagehand-rust-{}-{:?}", std::process::id(), std::thread::current().id()));
    File::create(&path).unwrap().write_all(bytes).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    Arc::new(file)
}

#[test]
fn what_happened_is_written_to_any_path() {
    let device = host(256 * KIB);
    let folder = std::env::temp_dir().join(format!("stagehand-rust-told-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let place = |name: &[u8]| folder.join(std::ffi::OsStr::from_bytes(name));
    let (trace, telemetry) = (place(b"trace \xff.json"), place(b"steps \xff.jsonl"));
    let recording = trace_start(&trace).unwrap();
    let runtime = Runtime::new(&device).unwrap();
    let block = runtime.register_block(BlockDesc::from_source(Source::owned(contents(1, 9_000)))).unwrap();
    let lines = runtime.telemetry_start(&telemetry).unwrap();
    for _ in 0..3 {
        compare(&runtime, &[block], &[contents(1, 9_000)]);
    }
    lines.end().unwrap();
    recording.end().unwrap();
    assert_eq!(std::fs::read_to_string(&telemetry).unwrap().lines().count(), 3);
    assert!(std::fs::read_to_string(&trace).unwrap().contains("traceEvents"));

    let refused = runtime.telemetry_start(place(b"before\0after")).unwrap_err();
    assert!(refused.status() == Status::INVALID_ARGUMENT && refused.text().contains("NUL"), "{refused}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn kinds_of_step_are_named_and_listed() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    for name in ["prefill", "decode", "prefill"] {
        runtime.step_of_kind(name).unwrap().end().unwrap();
    }
    let kinds = runtime.kinds().unwrap();
    assert_eq!(kinds.len(), 2);
    assert!(kinds.iter().any(|kind| kind.name == "prefill" && kind.steps == 2));
    assert_eq!(runtime.step_of_kind("a\0b").err().map(|error| error.status()), Some(Status::INVALID_ARGUMENT));
}

#[test]
fn every_kind_of_source_arrives() {
    let device = host(96 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let wanted: Vec<Vec<u8>> = (0..8).map(|i| contents(i, 40_000 + 111 * i)).collect();

    let shared = Arc::new(wanted[0].clone());
    let slice: Arc<[u8]> = wanted[1].clone().into();
    let file = file_of(&wanted[2]);
    // SAFETY: no other code knows the file.
    let map = Arc::new(unsafe { memmap2::Mmap::map(&*file_of(&wanted[3])) }.unwrap());
    let mut pinned = device.pinned_memory(wanted[4].len()).unwrap();
    assert!(pinned.iter().all(|&byte| byte == 0) && pinned.is_pinned());
    pinned.copy_from_slice(&wanted[4]);
    let filled = wanted[5].clone();
    let (front, back) = wanted[6].split_at(10_001);
    let mut given = device.pinned_memory(wanted[7].len()).unwrap();
    given.copy_from_slice(&wanted[7]);

    let blocks = runtime
        .register_blocks([
            BlockDesc::from_source(Source::shared(shared)).name("a Vec"),
            BlockDesc::from_source(Source::shared(slice)).name("a slice"),
            BlockDesc::from_source(Source::file(file, 0, wanted[2].len() as u64)).name("a file"),
            BlockDesc::from_source(Source::mapped(map)).name("a map"),
            BlockDesc::from_source(Source::shared(Arc::new(pinned))).name("pinned"),
            BlockDesc::from_source(Source::fill(filled.len() as u64, move |buffer, offset| {
                buffer.copy_from_slice(&filled[offset as usize..][..buffer.len()]);
                Ok(())
            })),
            BlockDesc::new(wanted[6].len() as u64)
                .source(0, Source::owned(front.to_vec()))
                .source(front.len() as u64, Source::owned(back.to_vec())),
            BlockDesc::from_source(Source::pinned(given)),
        ])
        .unwrap();
    for _ in 0..3 {
        compare(&runtime, &blocks, &wanted);
    }

    let memory = device.memory().unwrap();
    assert!(memory.peak_bytes <= memory.budget_bytes && memory.budget_bytes == 96 * KIB);
    let stats = runtime.stats().unwrap();
    assert_eq!((stats.steps, stats.acquires), (3, 24));
    let plan = runtime.plan().unwrap();
    assert!(plan.resident_bytes + plan.ring_bytes <= 96 * KIB && plan.bytes_per_step > 0);
    let state = runtime.block_info(blocks[0]).unwrap();
    assert_eq!((state.name.as_str(), state.held, state.bytes), ("a Vec", 0, 40_000));
}

#[test]
fn host_memory_and_threads_can_be_placed() {
    for host_node in [HostNode::Nearest, HostNode::Any, HostNode::Node(0)] {
        let device = host_with(&DeviceOptions {
            budget_bytes: 256 * KIB,
            page_bytes: 4 * KIB,
            staging_cpus: Some("0-1023".into()),
            small_host_pages: true,
            host_node,
            ..Default::default()
        });
        let runtime = Runtime::new(&device).unwrap();
        let block = runtime.register_block(BlockDesc::from_source(Source::owned(contents(1, 9_000)))).unwrap();
        compare(&runtime, &[block], &[contents(1, 9_000)]);
    }
    let options = DeviceOptions { helpers: Some("host:7".into()), helps: true, ..Default::default() };
    let refused = Device::open_with("host:7", &options).unwrap_err();
    assert!(refused.text().contains("options.helpers"), "{refused}");
    let _plain = host(256 * KIB);
    let more = DeviceOptions { helps: true, ..Default::default() };
    assert!(Device::open_with("host", &more).unwrap_err().text().contains("SH_HELPS_OTHERS"));
    let options = DeviceOptions { staging_cpus: Some("1-".into()), ..Default::default() };
    let refused = Device::open_with("host", &options).unwrap_err();
    assert!(refused.status() == Status::INVALID_ARGUMENT && refused.text().contains("staging_cpus"), "{refused}");
}

#[test]
fn packed_tensors_are_unpacked() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/data/packed");
    if !folder.exists() {
        return eprintln!("skipped: the crate is not in the library's tree");
    }
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let (contents, packed) = (read("weights.bf16"), read("weights.packed"));
    let bytes = contents.len() as u64;
    let sources = [
        Source::owned(packed.clone()).packed(0, bytes).unwrap(),
        Source::file(file_of(&packed), 0, packed.len() as u64).packed(300, 100).unwrap(),
    ];
    let wanted = [contents.clone(), contents[300..400].to_vec()];
    let blocks = runtime.register_blocks(sources.map(BlockDesc::from_source)).unwrap();
    compare(&runtime, &blocks, &wanted);
    let refused = |source: Source, text: &str| {
        let error = runtime.register_block(BlockDesc::from_source(source)).unwrap_err();
        assert!(error.status() == Status::INVALID_ARGUMENT && error.text().contains(text), "{error}");
    };
    let mut some = [0; 100];
    unpack(&packed, 300, &mut some).unwrap();
    assert_eq!(some[..], contents[300..400]);
    assert_eq!(status(unpack(&packed, bytes, &mut some)), Status::INVALID_ARGUMENT);
    assert_eq!(status(unpack(&contents, 0, &mut some)), Status::SOURCE);
    refused(Source::owned(packed.clone()).packed(1, bytes).unwrap(), "packed_offset");
    refused(Source::owned(contents).packed(0, 1).unwrap(), "not a packed tensor");
    refused(Source::fill(10, |_, _| Ok(())).packed(0, 1).unwrap(), "packed");
    assert!(Source::owned(Vec::new()).packed(0, 1000).is_err());
    let once = Source::shared(Arc::new(packed)).packed(0, bytes).unwrap();
    assert!(once.packed(0, 1).is_err());
}

#[test]
fn weights_are_packed_when_they_are_registered() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let weights: Vec<u8> = (0..100_000u32).flat_map(|i| [(i * 37) as u8, 0x3c | (i % 2) as u8]).collect();
    let shared = Arc::new(weights.clone());
    let sources = [
        Source::owned(weights.clone()).pack(WeightFormat::Bf16).unwrap(),
        Source::shared(shared.clone()).pack(WeightFormat::F16).unwrap(),
    ];
    let blocks = runtime.register_blocks(sources.map(BlockDesc::from_source)).unwrap();
    assert_eq!(Arc::strong_count(&shared), 1, "the library has its own copy");
    {
        let view = runtime.acquire(blocks[0], Stream::host()).unwrap();
        view.verify().unwrap();
        let byte = view.address().cast::<u8>();
        // SAFETY: this is host memory, the view is held, and no other code uses the memory.
        unsafe { byte.add(1000).write(!byte.add(1000).read()) };
        let error = view.verify().unwrap_err();
        assert!(error.status() == Status::CHECKSUM && error.text().contains("byte 1000"), "{error}");
    }
    runtime.invalidate(&blocks[..1]).unwrap();
    compare(&runtime, &blocks, &[weights.clone(), weights.clone()]);
    let mutable = BlockDesc::from_source(Source::shared(shared).pack(WeightFormat::Bf16).unwrap()).mutable();
    assert_eq!(runtime.register_block(mutable).unwrap_err().status(), Status::INVALID_ARGUMENT);
    assert!(Source::fill(10, |_, _| Ok(())).pack(WeightFormat::Bf16).is_err());
    assert!(Source::owned(vec![0; 8]).pack(WeightFormat::Bf16).unwrap().packed(0, 8).is_err());
}

#[test]
fn sources_are_replaced_in_an_update() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let weights = |seed: u32| -> Vec<u8> {
        (0..100_000u32).flat_map(|i| [(i * 37 + seed) as u8, 0x3c | (i % 2) as u8]).collect()
    };
    let packed = |seed: u32| Source::owned(weights(seed)).pack(WeightFormat::Bf16).unwrap();
    let shared = Arc::new(weights(1));
    let loads = Arc::new(AtomicU64::new(0));
    let counted = loads.clone();
    let with_hook = BlockDesc::from_source(Source::shared(shared.clone())).on_load(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let blocks = runtime.register_blocks([BlockDesc::from_source(packed(0)), with_hook]).unwrap();
    compare(&runtime, &blocks, &[weights(0), weights(1)]);
    let mut update = runtime.update_sources(&blocks).unwrap();
    let too_long = update.replace(blocks[0], [(1, packed(2))]).unwrap_err();
    assert!(too_long.status() == Status::INVALID_ARGUMENT && too_long.text().contains("ends beyond"), "{too_long}");
    update.replace(blocks[0], [(0, packed(2))]).unwrap();
    assert!(update.bytes_mut(blocks[0], 0).is_none(), "the library has its own copy");
    assert_eq!(Arc::strong_count(&shared), 2);
    update.replace(blocks[1], [(0, Source::owned(weights(3)))]).unwrap();
    assert_eq!(Arc::strong_count(&shared), 1, "the source before is dropped");
    update.bytes_mut(blocks[1], 0).unwrap()[0] = 77;
    let other = Block::from_raw(blocks[0].as_raw() + 1000);
    assert_eq!(update.replace(other, [(0, packed(2))]).unwrap_err().status(), Status::INVALID_STATE);
    update.end().unwrap();
    let mut changed = weights(3);
    changed[0] = 77;
    let before = loads.load(Ordering::Relaxed);
    compare(&runtime, &blocks, &[weights(2), changed]);
    assert!(loads.load(Ordering::Relaxed) > before, "on_load stays");
    let unchanged = runtime.update_sources(&blocks[..1]).unwrap().end().unwrap_err();
    assert!(unchanged.text().contains("sh_source_replace"), "{unchanged}");
}

#[test]
fn packed_blocks_can_be_changed() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let weights: Vec<u8> = (0..100_000u32).flat_map(|i| [(i * 37) as u8, 0x3c | (i % 2) as u8]).collect();
    let source = Source::owned(weights.clone()).pack(WeightFormat::Bf16).unwrap();
    let block = runtime.register_block(BlockDesc::from_source(source).mutable()).unwrap();
    compare(&runtime, &[block], std::slice::from_ref(&weights));
    {
        let view = runtime.acquire(block, Stream::host()).unwrap();
        // SAFETY: this is host memory, the view is held, and no other code uses the memory.
        unsafe { view.address().cast::<u8>().add(5).write(99) };
        view.mark_dirty().unwrap();
    }
    runtime.write_back(&[block]).unwrap();
    let mut update = runtime.update_sources(&[block]).unwrap();
    let bytes = update.bytes_mut(block, 0).unwrap();
    assert_eq!(bytes[5], 99, "it was written to the memory that was given away");
    bytes[6] = 98;
    update.end().unwrap();
    let mut wanted = weights;
    (wanted[5], wanted[6]) = (99, 98);
    compare(&runtime, &[block], &[wanted]);
}

#[test]
fn a_block_is_used_part_by_part() {
    let device = host(96 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let wanted = contents(5, 100_000);
    let desc = || BlockDesc::from_source(Source::owned(wanted.clone())).mutable();
    let limits = PartLimits { largest_bytes: 30_000, ..PartLimits::default() };
    let parts = runtime.register_parts(desc(), 1_000, limits).unwrap();
    assert_eq!(parts.len(), 4);
    let blocks: Vec<Block> = parts.iter().map(|part| part.block).collect();
    let pieces: Vec<Vec<u8>> =
        parts.iter().map(|part| wanted[part.offset as usize..][..part.bytes as usize].to_vec()).collect();
    assert_eq!(pieces.concat(), wanted);
    compare(&runtime, &blocks, &pieces);
    // The parts share the source, so no update has the bytes for itself.
    assert!(runtime.update_sources(&blocks[..1]).unwrap().bytes_mut(blocks[0], 0).is_none());
    // The source lives as long as one of them.
    runtime.unregister_blocks(&blocks[1..]).unwrap();
    compare(&runtime, &blocks[..1], &pieces[..1]);
    let few = runtime.register_parts(desc(), 1, PartLimits { most: 2, ..limits }).unwrap();
    assert_eq!(few.len(), 2);
}

#[test]
fn streams_wait_for_bytes_and_live_as_long_as_the_runtime() {
    let device = host(64 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let wanted: Vec<Vec<u8>> = (0..6).map(|i| contents(i, 30_000)).collect();
    let blocks = runtime
        .register_blocks(wanted.iter().map(|bytes| BlockDesc::from_source(Source::owned(bytes.clone()))))
        .unwrap();
    let (sender, receiver) = mpsc::channel();
    for round in 0..3 {
        let step = runtime.step().unwrap();
        // The stream is dropped while the step goes on. The runtime keeps the stream alive.
        let stream = device.stream().unwrap();
        for &block in &blocks {
            let view = runtime.acquire(block, &stream).unwrap();
            assert!(view.bytes().is_none(), "the bytes of a stream need not be there yet");
            let (address, bytes, sender) = (view.address() as usize, view.len() as usize, sender.clone());
            stream
                .launch(Duration::ZERO, move || {
                    // SAFETY: this runs on the view's stream between acquire and release, and the host can address the
                    // host backend's memory.
                    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) };
                    sender.send(bytes.to_vec()).unwrap();
                })
                .unwrap();
            view.release().unwrap();
        }
        if round == 1 {
            runtime.forget(&stream).unwrap();
        }
        drop(stream);
        step.end().unwrap();
        for bytes in &wanted {
            assert!(receiver.recv().unwrap() == *bytes);
        }
    }
}

#[test]
fn sets_are_acquired_together() {
    let device = host(256 * KIB);
    let runtime = Runtime::with_options(&device, &RuntimeOptions { max_held: 4, ..Default::default() }).unwrap();
    let wanted: Vec<Vec<u8>> = (0..4).map(|i| contents(i, 20_000)).collect();
    let blocks = runtime
        .register_blocks(wanted.iter().map(|bytes| BlockDesc::from_source(Source::owned(bytes.clone()))))
        .unwrap();
    let step = runtime.step().unwrap();
    let views = runtime.acquire_many(&blocks, Stream::host()).unwrap();
    assert_eq!(views.len(), 4);
    for (index, bytes) in wanted.iter().enumerate() {
        assert!(views.bytes(index).unwrap() == bytes && views[index].block == blocks[index].as_raw());
    }
    assert_eq!(runtime.block_info(blocks[2]).unwrap().held, 1);
    views.release().unwrap();
    assert_eq!(runtime.block_info(blocks[2]).unwrap().held, 0);
    // A block that is asked for without waiting arrives in the end.
    let view = loop {
        if let Some(view) = runtime.try_acquire(blocks[1], Stream::host()).unwrap() {
            break view;
        }
    };
    let mut part = vec![0; 100];
    view.read(5_000, &mut part).unwrap();
    assert!(part == wanted[1][5_000..5_100]);
    drop(view);
    step.end().unwrap();
}

#[test]
fn loads_are_patched_once_each() {
    let device = host(64 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let wanted: Vec<Vec<u8>> = (0..6).map(|i| contents(i, 25_000)).collect();
    let loaded = Arc::new(AtomicU64::new(0));
    let blocks = runtime
        .register_blocks(wanted.iter().map(|bytes| {
            let loaded = loaded.clone();
            BlockDesc::from_source(Source::owned(bytes.clone())).on_load(move |range| {
                loaded.fetch_add(range.bytes(), Ordering::Relaxed);
                assert!(range.offset() + range.bytes() <= range.block_bytes());
                range
                    .launch_on_bytes(Duration::ZERO, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0xff))
                    .map_err(std::io::Error::other)
            })
        }))
        .unwrap();
    let patched: Vec<Vec<u8>> = wanted.iter().map(|bytes| bytes.iter().map(|byte| byte ^ 0xff).collect()).collect();
    for _ in 0..4 {
        compare(&runtime, &blocks, &patched);
    }
    assert!(loaded.load(Ordering::Relaxed) >= 150_000);
}

#[test]
fn sources_change_in_updates_and_are_dropped_with_their_blocks() {
    struct Weights(Vec<u8>, Arc<AtomicBool>);
    impl AsRef<[u8]> for Weights {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Weights {
        fn drop(&mut self) {
            self.1.store(true, Ordering::SeqCst);
        }
    }

    let device = host(64 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let weights = Weights(contents(1, 9_000), dropped.clone());
    let blocks = runtime
        .register_blocks([
            BlockDesc::from_source(Source::owned(contents(0, 9_000))),
            BlockDesc::from_source(Source::shared(Arc::new(weights)).range(1_000..5_000).unwrap()),
        ])
        .unwrap();
    let part = contents(1, 9_000)[1_000..5_000].to_vec();
    compare(&runtime, &blocks, &[contents(0, 9_000), part.clone()]);

    let mut update = runtime.update_sources(&blocks).unwrap();
    assert!(update.bytes_mut(blocks[1], 0).is_none(), "shared memory must not be changed");
    assert!(update.bytes_mut(blocks[0], 1).is_none());
    update.bytes_mut(blocks[0], 0).unwrap().copy_from_slice(&contents(2, 9_000));
    update.end().unwrap();
    compare(&runtime, &blocks, &[contents(2, 9_000), part]);

    assert!(!dropped.load(Ordering::SeqCst));
    runtime.unregister_blocks(&blocks).unwrap();
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn an_update_outlives_its_block() {
    let device = host(64 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let block = runtime.register_block(BlockDesc::from_source(Source::owned(vec![1; 5_000]))).unwrap();
    let mut update = runtime.update_sources(&[block]).unwrap();
    let bytes = update.bytes_mut(block, 0).unwrap();
    // The update keeps the bytes whether the library unregisters the block or not.
    let _ = runtime.unregister_blocks(&[block]);
    bytes.fill(3);
    assert!(bytes.iter().all(|&byte| byte == 3));
}

#[test]
fn trained_weights_are_written_back() {
    let device = host(64 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let blocks = runtime
        .register_blocks((0..4).map(|_| BlockDesc::from_source(Source::owned(vec![10; 20_000])).mutable()))
        .unwrap();
    for round in 0..3u8 {
        let step = runtime.step().unwrap();
        for &block in &blocks {
            let view = runtime.acquire(block, Stream::host()).unwrap();
            assert!(view.bytes().unwrap().iter().all(|&byte| byte == 10 + round));
            // SAFETY: this is host memory, the view is held, and no other code uses the memory.
            unsafe { std::ptr::write_bytes(view.address().cast::<u8>(), 11 + round, view.len() as usize) };
            view.mark_dirty().unwrap();
        }
        step.end().unwrap();
    }
    runtime.write_back_all().unwrap();
    let mut update = runtime.update_sources(&blocks).unwrap();
    for &block in &blocks {
        assert!(update.bytes_mut(block, 0).unwrap().iter().all(|&byte| byte == 13));
    }
}

#[test]
fn devices_live_as_long_as_what_was_made_from_them() {
    let host = host(64 * KIB);
    let device = Device::open("host").unwrap();
    let (stream, mut memory) = (device.stream().unwrap(), device.pinned_memory(10_000).unwrap());
    let runtime = Runtime::new(&device).unwrap();
    let handle = device.as_raw();
    drop(device);
    memory.fill(5);
    stream.launch(Duration::ZERO, || {}).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(runtime.device().as_raw(), handle);
    let block = runtime.register_block(BlockDesc::from_source(Source::pinned(memory))).unwrap();
    compare(&runtime, &[block], &[vec![5; 10_000]]);
    assert!(host.capabilities().unwrap().host_addressable());
    assert!(backends().unwrap().iter().any(|backend| backend.name == "host" && backend.built_in));
}

#[test]
fn empty_blocks_and_sets_are_no_trouble() {
    let device = host(64 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    assert_eq!(runtime.register_blocks([]).map(|blocks| blocks.len()).unwrap_or(0), 0);
    runtime.write_back(&[]).unwrap();
    if let Ok(block) = runtime.register_block(BlockDesc::from_source(Source::owned(Vec::new()))) {
        if let Ok(view) = runtime.acquire(block, Stream::host()) {
            assert!(view.is_empty() && view.bytes().unwrap().is_empty());
        }
    }
}
