//! Protects blocks of a model that streams. The protected blocks stay on the device as a whole when another model
//! comes, and when new plans are made.
//!
//!     protect [DEVICE]
//!
//! This is the same program as examples/protect/protect.c, .cpp and .py.

use libstagehand::{Block, BlockDesc, Device, DeviceOptions, Runtime, RuntimeOptions, Source, Stream};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

const LAYERS: u8 = 12;
const LAYER_BYTES: u64 = 4 << 20;
const BUDGET: u64 = 24 << 20;
const PROTECTED: [usize; 2] = [0, 7];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A model. Every byte of a layer has the same value, and each layer has another value.
struct Model {
    runtime: Runtime,
    blocks: Vec<Block>,
    weights: Vec<Arc<Vec<u8>>>,
}

impl Model {
    /// Makes a model whose first layer has the value `first`. Each next layer has the next value.
    fn new(device: &Device, name: &str, layers: u8, first: u8) -> Result<Model> {
        let options = RuntimeOptions { name: Some(name.to_owned()), ..Default::default() };
        let runtime = Runtime::with_options(device, &options)?;
        let weights: Vec<_> = (0..layers).map(|i| Arc::new(vec![first + i; LAYER_BYTES as usize])).collect();
        let desc = |(i, layer): (usize, &Arc<Vec<u8>>)| {
            BlockDesc::from_source(Source::shared(layer.clone())).name(format!("{name} {i}"))
        };
        let blocks = runtime.register_blocks(weights.iter().enumerate().map(desc))?;
        Ok(Model { runtime, blocks, weights })
    }

    /// Makes one pass over the model. Instead of computing, the pass compares every byte.
    fn step(&self) -> Result<()> {
        let step = self.runtime.step()?;
        for (&block, layer) in self.blocks.iter().zip(&self.weights) {
            let view = self.runtime.acquire(block, Stream::host())?;
            let mut there = vec![0; view.len() as usize];
            view.read(0, &mut there)?;
            if there != **layer {
                return Err(format!("{}: its bytes are wrong", self.runtime.block_info(block)?.name).into());
            }
            view.release()?;
        }
        Ok(step.end()?)
    }

    /// Returns whether all bytes of the protected layers are on the device, in memory of their own.
    fn stays(&self) -> Result<bool> {
        let mut all = true;
        for layer in PROTECTED {
            let info = self.runtime.block_info(self.blocks[layer])?;
            all &= info.present_bytes == LAYER_BYTES && info.resident_bytes == LAYER_BYTES;
        }
        Ok(all)
    }

    /// Returns a number that grows when any of the protected layers is loaded.
    fn loads(&self) -> Result<u64> {
        let mut sum = 0;
        for layer in PROTECTED {
            sum += self.runtime.block_info(self.blocks[layer])?.serial;
        }
        Ok(sum)
    }
}

fn expect(holds: bool, what: &str) -> Result<()> {
    if !holds {
        return Err(format!("this does not hold: {what}").into());
    }
    println!("{what}");
    Ok(())
}

fn run(device_name: &str) -> Result<()> {
    let device = Device::open_with(device_name, &DeviceOptions { budget_bytes: BUDGET, ..Default::default() })?;
    let model = Model::new(&device, "model", LAYERS, 1)?;
    model.step()?;
    model.step()?;
    expect(model.runtime.stats()?.ring_bytes > 0, "the model streams")?;
    {
        let _protection = model.runtime.protect(&PROTECTED.map(|layer| model.blocks[layer]))?;
        model.runtime.plan()?;
        model.step()?;
        expect(model.stays()?, "the protected layers stay on the device as a whole")?;
        let before = model.loads()?;
        let other = Model::new(&device, "other", LAYERS, 101)?;
        for _ in 0..2 {
            other.step()?;
            model.step()?;
        }
        expect(model.stays()?, "they stay when another model comes")?;
        device.set_budget(BUDGET / 4 * 3)?;
        other.step()?;
        model.step()?;
        expect(model.stays()?, "they stay when there is less memory")?;
        expect(model.loads()? == before, "none of them was loaded again")?;
        expect(device.memory()?.peak_bytes <= BUDGET, "the device never held more than its budget")?;
    }
    let mut protections = 0;
    for &block in &model.blocks {
        protections += model.runtime.block_info(block)?.protections;
    }
    expect(protections == 0, "without protection they are layers like the others")
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [] => run("host"),
        [device] => run(device),
        _ => Err("usage: protect [DEVICE]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("protect: {error}");
            ExitCode::FAILURE
        }
    }
}
