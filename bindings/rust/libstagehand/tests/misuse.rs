//! Mistakes that the types cannot prevent give an error and lose nothing: wrong order, foreign blocks, panics in
//! callbacks, and use on other threads.

mod common;

use common::*;
use libstagehand::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

fn small(runtime: &Runtime, count: u64) -> (Vec<Block>, Vec<Vec<u8>>) {
    let wanted: Vec<Vec<u8>> = (0..count).map(|i| contents(i, 20_000)).collect();
    let sources = wanted.iter().map(|bytes| BlockDesc::from_source(Source::owned(bytes.clone())));
    (runtime.register_blocks(sources).unwrap(), wanted)
}

#[test]
fn wrong_order_is_an_error_and_nothing_is_lost() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let (blocks, wanted) = small(&runtime, 3);
    let step = runtime.step().unwrap();
    let second = runtime.step().unwrap_err();
    assert_eq!((second.status(), second.group()), (Status::INVALID_STATE, Group::Caller));
    assert!(second.to_string().starts_with("SH_ERROR_INVALID_STATE: "), "{second}");
    step.end().unwrap();

    compare(&runtime, &blocks, &wanted);

    // A leaked step or view stays. The next caller gets an error, and dropping the runtime does not crash.
    std::mem::forget(runtime.step().unwrap());
    std::mem::forget(runtime.acquire(blocks[1], Stream::host()).unwrap());
    assert_eq!(status(runtime.step()), Status::INVALID_STATE);
}

#[test]
fn bad_descriptions_are_named() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let shared = Arc::new(vec![0u8; 100]);
    let mutable = BlockDesc::from_source(Source::shared(shared.clone())).name("lent").mutable();
    let refused = runtime.register_block(mutable).unwrap_err();
    assert!(refused.status() == Status::INVALID_ARGUMENT && refused.text().contains("\"lent\""), "{refused}");
    let range = |from, to| Source::shared(shared.clone()).range(from..to).map(|source| source.bytes());
    assert_eq!(range(10, 20), Ok(10));
    assert_eq!(status(range(0, 101)), Status::INVALID_ARGUMENT);
    assert_eq!(status(range(20, 10)), Status::INVALID_ARGUMENT);
    assert_eq!(status(Source::owned(vec![0; 9]).range(0..1).map(drop)), Status::INVALID_ARGUMENT);
    assert_eq!(status(Device::open("ho\0st")), Status::INVALID_ARGUMENT);
    assert_eq!(Arc::strong_count(&shared), 1, "what was refused keeps nothing");
}

#[test]
fn a_fill_that_panics_or_fails_is_an_error_of_the_acquire() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let block = runtime
        .register_block(
            BlockDesc::from_source(Source::fill(5_000, move |buffer, _| {
                match counted.fetch_add(1, Ordering::SeqCst) {
                    0 => panic!("meant to panic, in a fill"),
                    1 => Err(std::io::Error::from_raw_os_error(5)),
                    2 => Err(std::io::Error::other("no number")),
                    _ => {
                        buffer.fill(9);
                        Ok(())
                    }
                }
            }))
            .name("filled"),
        )
        .unwrap();
    for said in ["it panicked: meant to panic, in a fill", "(os error 5)", "no number"] {
        let failed = runtime.acquire(block, Stream::host()).unwrap_err();
        assert_eq!((failed.status(), failed.group()), (Status::CALLBACK, Group::Operation), "{failed}");
        assert!(failed.text().contains("filled") && failed.text().ends_with(said), "{failed}");
    }
    let view = runtime.acquire(block, Stream::host()).unwrap();
    assert!(view.bytes().unwrap().iter().all(|&byte| byte == 9));
}

#[test]
fn an_on_load_that_panics_is_an_error_of_the_acquire() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let panics = Arc::new(AtomicBool::new(true));
    let panicking = panics.clone();
    let desc = BlockDesc::from_source(Source::owned(vec![4; 5_000])).on_load(move |_| {
        assert!(!panicking.load(Ordering::SeqCst), "meant to panic, in on_load");
        Ok(())
    });
    let block = runtime.register_block(desc).unwrap();
    let failed = runtime.acquire(block, Stream::host()).unwrap_err();
    assert!(failed.status() == Status::CALLBACK && failed.text().ends_with("meant to panic, in on_load"), "{failed}");
    let failed = runtime.acquire_many(&[block, block], Stream::host()).unwrap_err();
    assert!(failed.text().ends_with("meant to panic, in on_load"), "{failed}");
    panics.store(false, Ordering::SeqCst);
    assert!(runtime.acquire(block, Stream::host()).unwrap().bytes().unwrap().iter().all(|&byte| byte == 4));
}

#[test]
fn a_closure_that_panics_on_a_stream_is_told_once() {
    struct PanicsAgain;
    impl Drop for PanicsAgain {
        fn drop(&mut self) {
            panic!("meant to panic, when what was thrown is dropped");
        }
    }

    let device = host(256 * KIB);
    let stream = device.stream().unwrap();
    stream.launch(Duration::ZERO, || panic!("meant to panic, on a stream")).unwrap();
    let told = stream.synchronize().unwrap_err();
    assert!(told.status() == Status::CALLBACK && told.text().contains("meant to panic, on a stream"), "{told}");
    stream.launch(Duration::ZERO, || std::panic::panic_any(PanicsAgain)).unwrap();
    assert_eq!(status(stream.synchronize()), Status::CALLBACK);
    stream.launch(Duration::ZERO, || {}).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn a_log_that_panics_disturbs_nobody() {
    let device = host(256 * KIB);
    let lines = Arc::new(AtomicU32::new(0));
    let counted = lines.clone();
    set_log(LogLevel::DEBUG, move |_, line| {
        assert!(!line.is_empty());
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("meant to panic, in a log");
    })
    .unwrap();
    let runtime = Runtime::new(&device).unwrap();
    let (blocks, wanted) = small(&runtime, 3);
    compare(&runtime, &blocks, &wanted);
    // The library logs a warning about a scope of a runtime without blocks.
    drop(Runtime::new(&device).unwrap().keep_resident().unwrap());
    clear_log().unwrap();
    assert!(lines.load(Ordering::SeqCst) > 0);
    assert_eq!(Arc::strong_count(&lines), 1, "the closure is gone");
}

#[test]
fn pressure_that_panics_disturbs_nobody() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let (blocks, wanted) = small(&runtime, 12);
    compare(&runtime, &blocks, &wanted);
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    runtime
        .set_pressure(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            panic!("meant to panic, under pressure");
        })
        .unwrap();
    let step = runtime.step().unwrap();
    device.set_budget(128 * KIB).unwrap();
    drop(step);
    assert!(calls.load(Ordering::SeqCst) > 0);
    compare(&runtime, &blocks, &wanted);
}

#[test]
fn steps_do_not_overlap_on_any_thread() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let step = runtime.step().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(status(runtime.step()), Status::INVALID_STATE)).join().unwrap();
        scope.spawn(|| step.end().unwrap());
    });
    runtime.step().unwrap().end().unwrap();
}

#[test]
fn views_may_be_used_and_released_on_other_threads() {
    let device = host(256 * KIB);
    let runtime = Runtime::with_options(&device, &RuntimeOptions { max_held: 8, ..Default::default() }).unwrap();
    let (blocks, wanted) = small(&runtime, 4);
    compare(&runtime, &blocks, &wanted);
    std::thread::scope(|scope| {
        for (&block, wanted) in blocks.iter().zip(&wanted) {
            let view = runtime.acquire(block, Stream::host()).unwrap();
            let runtime = &runtime;
            scope.spawn(move || {
                assert!(view.bytes().unwrap() == wanted);
                view.release().unwrap();
                for _ in 0..50 {
                    assert!(runtime.acquire(block, Stream::host()).unwrap().bytes().unwrap() == wanted);
                }
            });
        }
    });
    assert!(blocks.iter().all(|&block| runtime.block_info(block).unwrap().held == 0));
}

#[test]
fn a_panic_of_the_engine_ends_its_views_and_steps() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let (blocks, wanted) = small(&runtime, 2);
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _step = runtime.step().unwrap();
        let _view = runtime.acquire(blocks[0], Stream::host()).unwrap();
        panic!("meant to panic, in a step");
    }));
    assert!(failed.is_err());
    assert_eq!(runtime.block_info(blocks[0]).unwrap().held, 0);
    compare(&runtime, &blocks, &wanted);
}
