//! Streams a safetensors file through a quarter of its bytes, then protects a block, reserves for the model, and lets a guest in.
//!
//!     stream_file FILE [DEVICE]
//!
//! The same program as examples/stream_file/stream_file.c, .cpp and .py. This one also compares every byte with the file's.

use libstagehand::{
    Block, BlockDesc, Device, DeviceOptions, GuestOptions, Priority, Runtime, RuntimeOptions, Source, Stream,
};
use memmap2::Mmap;
use safetensors::SafeTensors;
use std::error::Error;
use std::fs::File;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;

const GUEST_BYTES: u64 = 1 << 20;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Where each tensor lies in the file, and its name, in the file's order.
fn read_tensors(file: &[u8]) -> Result<Vec<(Range<usize>, String)>> {
    let (length, metadata) = SafeTensors::read_metadata(file)?;
    let mut tensors = Vec::new();
    for name in metadata.offset_keys() {
        let (begin, end) = metadata.info(&name).ok_or("a tensor without a place")?.data_offsets;
        if end > begin {
            tensors.push((8 + length + begin..8 + length + end, name));
        }
    }
    Ok(tensors)
}

/// One pass over the model. In place of computing, it adds up all bytes, after comparing them.
fn step(runtime: &Runtime, blocks: &[Block], wanted: &[&[u8]]) -> Result<u64> {
    let mut total = 0;
    let step = runtime.step()?;
    for (&block, &wanted) in blocks.iter().zip(wanted) {
        let view = runtime.acquire(block, Stream::host())?;
        let mut bytes = vec![0; view.len() as usize];
        view.read(0, &mut bytes)?;
        view.release()?;
        if bytes != wanted {
            return Err(format!("{} is not as in the file", runtime.block_info(block)?.name).into());
        }
        total += bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    }
    step.end()?;
    Ok(total)
}

fn run(path: &str, device_name: &str) -> Result<()> {
    // SAFETY: whoever calls this program does not change the file meanwhile.
    let file = File::open(path).and_then(|file| unsafe { Mmap::map(&file) });
    let file = Arc::new(file.map_err(|error| format!("{path}: {error}"))?);
    let tensors = read_tensors(&file).map_err(|error| format!("{path}: {error}"))?;
    let model_bytes: usize = tensors.iter().map(|(range, _)| range.len()).sum();
    let largest =
        tensors.iter().map(|(range, _)| range.len()).max().ok_or(format!("{path}: it has no tensors"))?;
    let model_budget = (model_bytes / 4).max(2 * largest) as u64;

    // Each tensor is a block, whose bytes come out of the file.
    let budget_bytes = model_budget + 2 * GUEST_BYTES;
    let device = Device::open_with(device_name, &DeviceOptions { budget_bytes, ..Default::default() })?;
    let runtime = |name: &str, max_bytes| {
        let name = Some(name.to_owned());
        Runtime::with_options(&device, &RuntimeOptions { name, max_bytes, ..Default::default() })
    };
    let (model, guest) = (runtime("model", model_budget)?, runtime("guest", 0)?);
    let mut descs = Vec::new();
    for (range, name) in &tensors {
        let source = Source::mapped(file.clone()).range(range.clone())?;
        descs.push(BlockDesc::from_source(source).name(name));
    }
    let blocks = model.register_blocks(descs)?;
    let wanted: Vec<&[u8]> = tensors.iter().map(|(range, _)| &file[range.clone()]).collect();
    println!("{} tensors of {model_bytes} bytes through {model_budget} bytes", blocks.len());
    for i in 0..2 {
        println!("step {i}: the bytes add up to {}", step(&model, &blocks, &wanted)?);
    }

    // Protect: the first block stays on the device, whole, whatever the others need.
    {
        let _protection = model.protect(&blocks[..1])?;
        model.plan()?;
        step(&model, &blocks, &wanted)?;
        let info = model.block_info(blocks[0])?;
        println!(
            "protected: {} of {} bytes of {} stay on the device",
            info.resident_bytes, info.bytes, info.name
        );
    }

    // Reserve and guest: another model comes for a while, and takes nothing of what this one streams with.
    let weights = vec![1; GUEST_BYTES as usize];
    let guest_block =
        guest.register_block(BlockDesc::from_source(Source::owned(weights.clone())).name("weights"))?;
    let reservation = model.reserve(0, Priority::Primary)?;
    let visit = model.as_guest(&guest, &GuestOptions::default())?;
    let guest_total = step(&guest, &[guest_block], &[&weights])?;
    println!("guest: the bytes add up to {guest_total}, the model's to {}", step(&model, &blocks, &wanted)?);
    visit.end()?;
    println!("after the guest: it holds {} bytes", guest.stats()?.held_bytes);
    drop(reservation);
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [path] => run(path, "host"),
        [path, device] => run(path, device),
        _ => Err("usage: stream_file FILE [DEVICE]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stream_file: {error}");
            ExitCode::FAILURE
        }
    }
}
