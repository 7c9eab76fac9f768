//! Measures the cost of the safe interface: acquire and release of resident blocks through the safe interface, and
//! through the C interface, in turns within one run. Run it by `cargo bench`. Each figure is the first decile of many
//! short rounds, because other work on the machine only makes rounds longer.

use libstagehand::*;
use std::hint::black_box;
use std::time::Instant;

const BLOCKS: usize = 64;
/// Number of acquires in a step. Their order is always the same.
const PAIRS: usize = 1024;
const ROUNDS: usize = 4000;

fn main() -> Result<()> {
    // `cargo test --benches` needs only one round, to see that the benchmark runs.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { ROUNDS } else { 1 };
    let device = Device::open_with("host", &DeviceOptions { budget_bytes: 64 << 20, ..Default::default() })?;
    let runtime = Runtime::new(&device)?;
    let blocks =
        runtime.register_blocks((0..BLOCKS).map(|i| BlockDesc::from_source(Source::owned(vec![i as u8; 64 << 10]))))?;
    let made = device.stream()?;
    for (name, stream) in [("host", Stream::host()), ("a stream", &made)] {
        measure(name, &runtime, &blocks, stream, rounds)?;
    }
    Ok(())
}

fn measure(name: &str, runtime: &Runtime, blocks: &[Block], stream: &Stream, rounds: usize) -> Result<()> {
    // These rounds teach the library the order and make every block resident before the measurement.
    for _ in 0..3 {
        time(runtime, || through_rust(runtime, blocks, stream))?;
    }
    let (mut c, mut rust) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // The first of the two calls in a round finds the caches that the other has left, so they take turns.
        let (c_ns, rust_ns) = if round % 2 == 0 {
            let c_ns = time(runtime, || through_c(runtime, blocks, stream))?;
            (c_ns, time(runtime, || through_rust(runtime, blocks, stream))?)
        } else {
            let rust_ns = time(runtime, || through_rust(runtime, blocks, stream))?;
            (time(runtime, || through_c(runtime, blocks, stream))?, rust_ns)
        };
        c.push(c_ns);
        rust.push(rust_ns);
    }
    let (c, rust) = (first_decile(c), first_decile(rust));
    println!("acquire + release on {name}: C {c:.1} ns, Rust {rust:.1} ns, ratio {:.3}", rust / c);
    Ok(())
}

/// Returns the nanoseconds for one pair. The pairs run in a step of their own.
fn time(runtime: &Runtime, pairs: impl FnOnce() -> Result<()>) -> Result<f64> {
    let step = runtime.step()?;
    let begin = Instant::now();
    pairs()?;
    let elapsed = begin.elapsed();
    step.end()?;
    Ok(elapsed.as_nanos() as f64 / PAIRS as f64)
}

fn through_rust(runtime: &Runtime, blocks: &[Block], stream: &Stream) -> Result<()> {
    for i in 0..PAIRS {
        let view = runtime.acquire(blocks[i % BLOCKS], stream)?;
        black_box(view.address());
        view.release()?;
    }
    Ok(())
}

/// Makes the same calls as an engine in C.
fn through_c(runtime: &Runtime, blocks: &[Block], stream: &Stream) -> Result<()> {
    let (runtime, stream) = (runtime.as_raw(), stream.as_raw());
    for i in 0..PAIRS {
        let mut view = sys::sh_view {
            struct_size: size_of::<sys::sh_view>() as u32,
            flags: 0,
            block: 0,
            address: std::ptr::null_mut(),
            bytes: 0,
            serial: 0,
        };
        let block = blocks[i % BLOCKS].as_raw();
        // SAFETY: the runtime and the stream are alive; each acquire has its release.
        unsafe {
            assert!(sys::sh_acquire(runtime, block, stream, 0, &mut view) == sys::SH_OK);
            black_box(view.address);
            assert!(sys::sh_release(runtime, block, stream) == sys::SH_OK);
        }
    }
    Ok(())
}

fn first_decile(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}
