//! Code that the tests share: the host device, of which a process has only one, and contents that show where they come
//! from.
#![allow(dead_code)]

use libstagehand::*;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub const KIB: u64 = 1024;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The host device for one test. The next test may open it with another budget.
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

/// Lets only one test run until the guard is dropped.
pub fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns bytes that differ for each `seed` and for each place in the block.
pub fn contents(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| byte_at(seed, i)).collect()
}

pub fn byte_at(seed: u64, offset: u64) -> u8 {
    ((offset ^ (seed << 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Returns the status of a failed call.
#[track_caller]
pub fn status<T>(result: Result<T>) -> Status {
    match result {
        Ok(_) => panic!("the call should have failed"),
        Err(error) => error.status(),
    }
}

/// Makes one step over the blocks in their order and compares every byte.
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
