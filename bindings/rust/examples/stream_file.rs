//! Streams a safetensors file through a quarter of its size, and compares every byte.
//!
//!     stream_file FILE [DEVICE]
//!
//! This is the same program as examples/stream_file/stream_file.c, .cpp and .py.

use libstagehand::{Block, BlockDesc, Device, DeviceOptions, Runtime, Source, Stream};
use memmap2::Mmap;
use safetensors::SafeTensors;
use std::error::Error;
use std::fs::File;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;

const STEPS: u64 = 3;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A tensor's range of bytes in the file, and its name.
type Tensor = (Range<usize>, String);

/// Returns the tensors in the order of the file. Tensors without bytes are left out.
fn read_tensors(file: &[u8]) -> Result<Vec<Tensor>> {
    let (length, metadata) = SafeTensors::read_metadata(file)?;
    let mut tensors = Vec::new();
    for name in metadata.offset_keys() {
        let (begin, end) = metadata.info(&name).ok_or("a tensor without a place")?.data_offsets;
        if end > begin {
            tensors.push((8 + length + begin..8 + length + end, name));
        }
    }
    if tensors.is_empty() {
        return Err("it has no tensors".into());
    }
    Ok(tensors)
}

/// Divides tensors into pieces of at most `most` bytes. Each piece becomes a block, and the largest block has to fit
/// into the budget as a whole.
fn split(tensors: &[Tensor], most: usize) -> Vec<Tensor> {
    let pieces = |(range, name): &Tensor| {
        let (end, name) = (range.end, name.clone());
        range.clone().step_by(most).map(move |at| (at..end.min(at + most), name.clone()))
    };
    tensors.iter().flat_map(pieces).collect()
}

/// Registers each piece as a block whose bytes come from the file.
fn register_model(model: &Runtime, file: &Arc<Mmap>, pieces: &[Tensor]) -> Result<Vec<Block>> {
    let mut descs = Vec::new();
    for (range, name) in pieces {
        let source = Source::mapped(file.clone()).range(range.clone())?;
        descs.push(BlockDesc::from_source(source).name(name));
    }
    Ok(model.register_blocks(descs)?)
}

/// Makes one pass over the model. Instead of computing, the pass compares every byte with the file.
fn step(model: &Runtime, blocks: &[Block], file: &[u8], pieces: &[Tensor]) -> Result<usize> {
    let mut total = 0;
    let step = model.step()?;
    for (&block, (range, name)) in blocks.iter().zip(pieces) {
        let view = model.acquire(block, Stream::host())?;
        let mut there = vec![0; view.len() as usize];
        view.read(0, &mut there)?;
        view.release()?;
        if there != file[range.clone()] {
            return Err(format!("{name}: its bytes differ from the file").into());
        }
        total += there.len();
    }
    step.end()?;
    Ok(total)
}

fn run(path: &str, device_name: &str) -> Result<()> {
    // SAFETY: the user of this program does not change the file meanwhile.
    let file = File::open(path).and_then(|file| unsafe { Mmap::map(&file) });
    let file = Arc::new(file.map_err(|error| format!("{path}: {error}"))?);
    let tensors = read_tensors(&file).map_err(|error| format!("{path}: {error}"))?;
    let model_bytes: u64 = tensors.iter().map(|(range, _)| range.len() as u64).sum();
    let budget_bytes = model_bytes / 4;
    let pieces = split(&tensors, budget_bytes as usize / 4 + 1);

    let device = Device::open_with(device_name, &DeviceOptions { budget_bytes, ..Default::default() })?;
    let model = Runtime::new(&device)?;
    let blocks = register_model(&model, &file, &pieces)?;
    println!(
        "{} tensors of {model_bytes} bytes, in {} blocks, through {budget_bytes} bytes",
        tensors.len(),
        blocks.len()
    );
    for i in 0..STEPS {
        println!("step {i}: {} bytes equal the file", step(&model, &blocks, &file, &pieces)?);
    }
    let (peak, copied) = (device.memory()?.peak_bytes, model.stats()?.bytes_to_device);
    println!("the device held at most {peak} bytes, and {copied} bytes were copied to it");
    if peak > budget_bytes {
        return Err("the device: it held more than the budget".into());
    }
    if copied < model_bytes + (STEPS - 1) * (model_bytes - budget_bytes) {
        return Err("the model: it did not stream".into());
    }
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
