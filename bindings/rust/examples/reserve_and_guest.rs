//! Two models share a device. The first model reserves the memory that it streams with, and keeps its memory resident.
//! The second model is a guest for a while.
//!
//!     reserve_and_guest [DEVICE]
//!
//! This is the same program as examples/reserve_and_guest/reserve_and_guest.c, .cpp and .py.

use libstagehand::{
    Block, BlockDesc, Device, DeviceOptions, GuestOptions, Priority, Runtime, RuntimeOptions, Scope, Source, Status,
    Stream,
};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

const LAYER_BYTES: u64 = 4 << 20;
const MODEL_LAYERS: u8 = 12;
const MODEL_MOST: u64 = 20 << 20;
const GUEST_LAYERS: u8 = 2;
const BUDGET: u64 = 40 << 20;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A model. Every byte of a layer has the same value, and each layer has another value.
struct Model {
    runtime: Runtime,
    blocks: Vec<Block>,
    weights: Vec<Arc<Vec<u8>>>,
}

impl Model {
    /// Makes a model whose first layer has the value `first`. Each next layer has the next value.
    fn new(device: &Device, name: &str, layers: u8, first: u8, max_bytes: u64) -> Result<Model> {
        let options = RuntimeOptions { name: Some(name.to_owned()), max_bytes, ..Default::default() };
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

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.runtime.stats()?.held_bytes)
    }

    /// Lets another model in as a guest, with `bytes` bytes for its blocks. 0 means enough for all its blocks.
    fn let_in<'a>(&self, guest: &'a Model, bytes: u64) -> libstagehand::Result<Scope<'a>> {
        self.runtime.as_guest(&guest.runtime, &GuestOptions { bytes, ..Default::default() })
    }

    /// Returns whether there is no room for another model as a guest with `bytes` bytes.
    fn refuses(&self, guest: &Model, bytes: u64) -> bool {
        self.let_in(guest, bytes).is_err_and(|error| error.status() == Status::BUDGET)
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
    let model = Model::new(&device, "model", MODEL_LAYERS, 1, MODEL_MOST)?;
    let guest = Model::new(&device, "guest", GUEST_LAYERS, 101, 0)?;
    model.step()?;
    model.step()?;
    expect(model.runtime.stats()?.ring_bytes > 0, "the model streams")?;

    // Reserve: no other model gets the memory that this model streams with.
    let reservation = model.runtime.reserve(0, Priority::Primary)?;
    let reserved = device.memory()?.reserved_bytes;
    expect(reserved > 0 && reserved <= MODEL_MOST, "it has reserved the memory that it streams with")?;
    expect(model.refuses(&guest, BUDGET - reserved / 2), "a guest that needs a part of that memory is refused")?;

    // Guest: all layers of the other model are on the device until the scope ends, and both models work.
    let scope = model.let_in(&guest, 0)?;
    guest.step()?;
    model.step()?;
    guest.step()?;
    let mut there = true;
    for &block in &guest.blocks {
        there &= guest.runtime.block_info(block)?.present_bytes == LAYER_BYTES;
    }
    expect(there, "a guest that fits has all its layers on the device")?;
    scope.end()?;
    expect(guest.held_bytes()? == 0, "the guest has left and holds nothing")?;
    drop(reservation);
    expect(device.memory()?.reserved_bytes == 0, "nothing is reserved")?;

    // Keep resident: no other model gets memory that this model holds.
    model.step()?;
    let held = model.held_bytes()?;
    let scope = model.runtime.keep_resident()?;
    expect(model.refuses(&guest, BUDGET - held / 2), "a model that is kept resident gives nothing to a guest")?;
    expect(model.held_bytes()? == held, "it holds as much as before")?;
    scope.end()?;
    let scope = model.let_in(&guest, BUDGET - held / 2)?;
    expect(model.held_bytes()? < held, "afterwards it gives up a part of it")?;
    model.step()?;
    scope.end()?;
    model.step()?;
    expect(device.memory()?.peak_bytes <= BUDGET, "the device never held more than its budget")
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [] => run("host"),
        [device] => run(device),
        _ => Err("usage: reserve_and_guest [DEVICE]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reserve_and_guest: {error}");
            ExitCode::FAILURE
        }
    }
}
