//! What the tests share: the host device, which a process has once, and contents that tell where they come from.
#![allow(dead_code)]

use libstagehand::*;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub const KIB: u64 = 1024;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The host device for one test; the next one may have another budget.
pub struct HostDevice {
    device: Device,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for HostDevice {
    type Target = Device;
    fn deref(&self) -> &Device {
        &self.device
    }
}

pub fn host(budget_bytes: u64) -> HostDevice {
    host_with(&DeviceOptions { budget_bytes, page_bytes: 4 * KIB, ..Default::default() })
}

pub fn host_with(options: &DeviceOptions) -> HostDevice {
    let turn = turn();
    HostDevice { device: Device::open_with("host", options).unwrap(), _turn: turn }
}

/// One test at a time, until this is dropped.
pub fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that are different for each `seed` and everywhere in the block.
pub fn contents(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| byte_at(seed, i)).collect()
}

pub fn byte_at(seed: u64, offset: u64) -> u8 {
    ((offset ^ (seed << 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The status that a call failed with.
#[track_caller]
pub fn status<T>(result: Result<T>) -> Status {
    match result {
        Ok(_) => panic!("it did not fail"),
        Err(error) => error.status(),
    }
}

/// One step over the blocks in their order; every byte is compared.
#[track_caller]
pub fn compare(runtime: &Runtime, blocks: &[Block], wanted: &[Vec<u8>]) {
    let step = runtime.step().unwrap();
    for (block, wanted) in blocks.iter().zip(wanted) {
        let view = runtime.acquire(*block, Stream::host()).unwrap();
        assert_eq!(view.len(), wanted.len() as u64);
        assert!(view.bytes().unwrap() == wanted, "contents of {block:?}");
        view.release().unwrap();
    }
    step.end().unwrap();
}
