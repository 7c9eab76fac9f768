//! Tests captured steps with the backend of tests/graphs. This backend has graphs and needs no GPU. The tests are
//! skipped if CAPTURE_BACKEND does not name the backend's file.

mod common;

use common::*;
use libstagehand::*;
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BLOCKS: u64 = 8;
const BYTES: u64 = 36 * KIB;

/// The driver's calls that an engine makes. Each function has the type `sh_status (*)(pointer or stream, pointer or
/// stream)`, but some functions do not have the second parameter.
struct Driver(*mut c_void);

impl Driver {
    fn call(&self, name: &str, one: u64, other: u64) -> i32 {
        let name = CString::new(name).unwrap();
        // SAFETY: the plugin has these functions. Their arguments are 64 bits wide, and an argument too many does no
        // harm.
        unsafe {
            let found = libc::dlsym(self.0, name.as_ptr());
            assert!(!found.is_null(), "{name:?}");
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64, u64) -> i32>(found)(one, other)
        }
    }

    fn begin(&self, stream: &Stream) {
        assert_eq!(self.call("sh_test_capture_begin", stream.as_raw(), 0), 0);
    }

    fn end(&self, stream: &Stream) -> u64 {
        let mut native = 0u64;
        assert_eq!(self.call("sh_test_capture_end", stream.as_raw(), &raw mut native as u64), 0);
        native
    }

    fn launch(&self, native: u64, stream: &Stream) {
        assert_eq!(self.call("sh_test_graph_launch", native, stream.as_raw()), 0);
    }

    fn destroy(&self, native: u64) {
        self.call("sh_test_graph_destroy", native, 0);
    }
}

/// The data of a launched comparison: the address of the bytes, the expected bytes, and the counter of matches.
struct Look {
    address: usize,
    wanted: Vec<u8>,
    right: Arc<AtomicU64>,
}

unsafe extern "C" fn look(data: *mut c_void) {
    // SAFETY: `data` points to a Look that is leaked.
    let look = unsafe { &*data.cast::<Look>() };
    // SAFETY: the address is host memory, and the capture holds it.
    let there = unsafe { std::slice::from_raw_parts(look.address as *const u8, look.wanted.len()) };
    if there == look.wanted {
        look.right.fetch_add(1, Ordering::SeqCst);
    }
}

struct Model {
    runtime: Runtime,
    blocks: Vec<Block>,
    right: Arc<AtomicU64>,
}

impl Model {
    fn new(device: &Device) -> Model {
        let runtime = Runtime::new(device).unwrap();
        let descs = (0..BLOCKS).map(|i| {
            let mut memory = device.pinned_memory(BYTES as usize).unwrap();
            memory.copy_from_slice(&contents(i, BYTES));
            BlockDesc::from_source(Source::pinned(memory))
        });
        let blocks = runtime.register_blocks(descs).unwrap();
        runtime.set_schedule(&blocks.iter().copied().map(Use::from).collect::<Vec<_>>()).unwrap();
        Model { runtime, blocks, right: Arc::default() }
    }

    /// Makes the engine's step. The stream compares every byte.
    fn forward(&self, stream: &Stream) {
        for (i, &block) in self.blocks.iter().enumerate() {
            let view = self.runtime.acquire(block, stream).unwrap();
            let address = view.address() as usize;
            let look_at = Look { address, wanted: contents(i as u64, BYTES), right: self.right.clone() };
            let data = Box::leak(Box::new(look_at)) as *mut Look;
            let device = self.runtime.device().as_raw();
            // SAFETY: the stream belongs to the device, and the captured data are never freed.
            let status = unsafe { sys::sh_stream_launch(device, stream.as_raw(), Some(look), data.cast(), 0) };
            assert_eq!(status, sys::SH_OK);
        }
    }

    fn right(&self) -> u64 {
        self.right.load(Ordering::SeqCst)
    }
}

/// Runs a test with the driver and with a device whose budget is half the model. Only one test runs at a time.
fn with_graphs(test: impl FnOnce(&Driver, &Device)) {
    let Some(path) = std::env::var("CAPTURE_BACKEND").ok().filter(|path| !path.is_empty()) else {
        eprintln!("skipped: CAPTURE_BACKEND does not name the plugin that has graphs");
        return;
    };
    let _turn = turn();
    let options = DeviceOptions {
        budget_bytes: 128 * KIB,
        page_bytes: 4 * KIB,
        backend_path: Some(path.clone().into()),
        ..Default::default()
    };
    let device = Device::open_with("capture", &options).unwrap();
    let name = CString::new(path).unwrap();
    // SAFETY: this is the plugin that the library has loaded already.
    let library = unsafe { libc::dlopen(name.as_ptr().cast::<c_char>(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    test(&Driver(library), &device);
}

#[test]
fn each_launch_streams_a_model_larger_than_the_budget() {
    with_graphs(|driver, device| {
        let model = Model::new(device);
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        assert!(model.runtime.plan().unwrap().ring_bytes > 0);
        driver.begin(&stream);
        let mut capture = model.runtime.capture(&stream).unwrap();
        model.forward(&stream);
        let graph = capture.end().unwrap();
        assert_eq!(status(capture.end()), Status::INVALID_STATE);
        let native = driver.end(&stream);
        assert_eq!(model.right(), 0);
        for turn in 0..4 {
            let on = if turn % 2 == 0 { &stream } else { &other };
            let launch = graph.launch(on).unwrap();
            driver.launch(native, on);
            assert_eq!(status(graph.launch(on)), Status::INVALID_STATE);
            if turn < 2 {
                launch.end().unwrap();
            }
        }
        stream.synchronize().unwrap();
        other.synchronize().unwrap();
        assert_eq!(model.right(), 4 * BLOCKS);
        assert!(device.memory().unwrap().peak_bytes <= 128 * KIB);

        device.set_budget(100 * KIB).unwrap();
        assert_eq!(status(model.runtime.plan()), Status::INVALID_STATE);
        assert_eq!(status(model.runtime.unregister_blocks(&model.blocks)), Status::INVALID_STATE);
        model.runtime.plan_with(&PlanOptions { drop_graphs: true, ..Default::default() }).unwrap();
        assert_eq!(status(graph.launch(&stream)), Status::STALE);
        drop(graph);
        driver.destroy(native);
        // This launch ends on another thread and happens under the new plan.
        driver.begin(&stream);
        let mut capture = model.runtime.capture(&stream).unwrap();
        model.forward(&stream);
        let graph = capture.end().unwrap();
        let native = driver.end(&stream);
        std::thread::scope(|scope| {
            let launch = graph.launch(&stream).unwrap();
            driver.launch(native, &stream);
            scope.spawn(move || launch.end().unwrap());
        });
        stream.synchronize().unwrap();
        assert_eq!(model.right(), 5 * BLOCKS);
        drop(graph);
        driver.destroy(native);
    });
}

#[test]
fn captures_end_on_every_path() {
    with_graphs(|driver, device| {
        let model = Model::new(device);
        let stream = device.stream().unwrap();
        let runtime = &model.runtime;
        assert_eq!(status(runtime.capture(Stream::host())), Status::INVALID_ARGUMENT);
        driver.begin(&stream);
        assert_eq!(status(runtime.capture(&stream)), Status::INVALID_STATE); // there is no plan
        driver.destroy(driver.end(&stream));
        runtime.plan().unwrap();
        assert_eq!(status(runtime.capture(&stream)), Status::INVALID_STATE); // the stream does not capture
        stream.launch(Duration::ZERO, || ()).unwrap(); // the refused capture leaves nothing behind

        driver.begin(&stream);
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _capture = runtime.capture(&stream).unwrap();
            let _view = runtime.acquire(model.blocks[0], &stream).unwrap();
            assert_eq!(status(runtime.capture(&stream)), Status::INVALID_STATE);
            assert_eq!(status(runtime.step()), Status::INVALID_STATE);
            panic!("meant to panic, in a capture");
        }));
        assert!(failed.is_err());
        driver.destroy(driver.end(&stream));
        runtime.plan().unwrap(); // no graph holds the plan

        driver.begin(&stream);
        let mut capture = runtime.capture(&stream).unwrap();
        let view = runtime.acquire(model.blocks[0], &stream).unwrap();
        assert_eq!(status(capture.end()), Status::INVALID_STATE); // a view is held, so the capture goes on
        drop(view);
        let graph = capture.end().unwrap();
        driver.destroy(driver.end(&stream));
        drop(graph.launch(&stream).unwrap()); // a launch guard may end without a launch
        assert!(format!("{graph:?} {capture:?}").contains("Graph"));
    });
}

#[test]
fn a_cancelled_capture_releases_its_views_once() {
    with_graphs(|driver, device| {
        let model = Model::new(device);
        let (runtime, block) = (&model.runtime, model.blocks[0]);
        let stream = device.stream().unwrap();
        runtime.plan().unwrap();
        driver.begin(&stream);
        let capture = runtime.capture(&stream).unwrap();
        let left = runtime.acquire(block, &stream).unwrap();
        let released = runtime.acquire(block, &stream).unwrap();
        let set = runtime.acquire_many(&[block, block], &stream).unwrap();
        drop(capture);
        driver.destroy(driver.end(&stream));
        // The guards of the cancelled capture must not release this view.
        let view = runtime.acquire(block, Stream::host()).unwrap();
        drop(left);
        released.release().unwrap();
        set.release().unwrap();
        assert_eq!(runtime.block_info(block).unwrap().held, 1);
        assert!(view.bytes().unwrap() == contents(0, BYTES));
        view.release().unwrap();
        assert_eq!(runtime.block_info(block).unwrap().held, 0);
    });
}

#[test]
fn what_is_leaked_of_graphs_is_an_error_and_no_crash() {
    with_graphs(|driver, device| {
        let model = Model::new(device);
        let stream = device.stream().unwrap();
        model.runtime.plan().unwrap();
        driver.begin(&stream);
        let mut capture = model.runtime.capture(&stream).unwrap();
        model.forward(&stream);
        let graph = capture.end().unwrap();
        let native = driver.end(&stream);
        std::mem::forget(graph.launch(&stream).unwrap());
        assert_eq!(status(graph.launch(&stream)), Status::INVALID_STATE);
        drop((graph, capture));
        driver.destroy(native);
        drop(model);

        let model = Model::new(device);
        model.runtime.plan().unwrap();
        let captured = device.stream().unwrap();
        driver.begin(&captured);
        std::mem::forget(model.runtime.capture(&captured).unwrap());
        let mut native = 0u64;
        // This call may fail, because the library's part of the capture is not joined.
        driver.call("sh_test_capture_end", captured.as_raw(), &raw mut native as u64);
        let raw = captured.as_raw();
        drop(captured);
        // The runtime keeps the stream of a capture that never ends.
        assert_eq!(status(model.runtime.step()), Status::INVALID_STATE);
        // SAFETY: the call only checks whether the stream exists.
        assert_eq!(unsafe { sys::sh_stream_synchronize(device.as_raw(), raw) }, sys::SH_OK);
    });
}

#[test]
fn closures_that_a_graph_would_call_twice_are_refused() {
    with_graphs(|driver, device| {
        let runtime = Runtime::new(device).unwrap();
        let mut memory = device.pinned_memory(BYTES as usize).unwrap();
        memory.copy_from_slice(&contents(1, BYTES));
        let refused = Arc::new(AtomicU64::new(0));
        let seen = refused.clone();
        let desc = BlockDesc::from_source(Source::pinned(memory)).whole().on_load(move |range| {
            match range.launch(Duration::ZERO, || ()) {
                Err(error) if error.status() == Status::INVALID_STATE => seen.fetch_add(1, Ordering::SeqCst),
                Err(error) => return Err(std::io::Error::other(error)),
                Ok(()) => 0,
            };
            Ok(())
        });
        let mut others = Vec::new();
        for i in 0..6 {
            let mut memory = device.pinned_memory(BYTES as usize).unwrap();
            memory.copy_from_slice(&contents(i, BYTES));
            others.push(BlockDesc::from_source(Source::pinned(memory)).whole());
        }
        let mut blocks = runtime.register_blocks([desc]).unwrap();
        blocks.extend(runtime.register_blocks(others).unwrap());
        runtime.set_schedule(&blocks.iter().copied().map(Use::from).collect::<Vec<_>>()).unwrap();
        runtime.plan().unwrap();
        let (stream, plain) = (device.stream().unwrap(), device.stream().unwrap());
        driver.begin(&stream);
        let mut capture = runtime.capture(&stream).unwrap();
        assert_eq!(status(stream.clone().launch(Duration::ZERO, || ())), Status::INVALID_STATE);
        plain.launch(Duration::ZERO, || ()).unwrap();
        for &block in &blocks {
            drop(runtime.acquire(block, &stream).unwrap());
        }
        let graph = capture.end().unwrap();
        let streamed = runtime.block_info(blocks[0]).unwrap().streamed_bytes > 0;
        assert_eq!(refused.load(Ordering::SeqCst), u64::from(streamed));
        assert!(streamed);
        driver.destroy(driver.end(&stream));
        drop(graph);
        stream.launch(Duration::ZERO, || ()).unwrap();
        drop(runtime.acquire(blocks[0], &stream).unwrap());
    });
}

#[test]
fn devices_without_graphs_say_so() {
    let device = host(256 * KIB);
    let runtime = Runtime::new(&device).unwrap();
    let block = runtime.register_block(BlockDesc::from_source(Source::owned(vec![1]))).unwrap();
    runtime.set_schedule(&[block.into()]).unwrap();
    runtime.plan().unwrap();
    let stream = device.stream().unwrap();
    assert_eq!(status(runtime.capture(&stream)), Status::UNSUPPORTED);
}
