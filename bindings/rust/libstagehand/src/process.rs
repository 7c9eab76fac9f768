//! What belongs to the whole process: version, log, trace, monitor.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use libstagehand_sys as sys;

use crate::callback::guarded;
use crate::error::{Result, c_path, check};
use crate::source::Keep;

/// Version of the library at run time as major × 1,000,000 + minor × 1,000 + patch.
pub fn version() -> u32 {
    // SAFETY: it never fails.
    unsafe { sys::sh_version() }
}

/// How serious a log line is; lower is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogLevel(pub i32);

impl LogLevel {
    /// Something failed.
    pub const ERROR: LogLevel = LogLevel(sys::SH_LOG_ERROR as i32);
    /// Something is not as it should be.
    pub const WARNING: LogLevel = LogLevel(sys::SH_LOG_WARNING as i32);
    /// What happens now and then.
    pub const INFO: LogLevel = LogLevel(sys::SH_LOG_INFO as i32);
    /// Everything.
    pub const DEBUG: LogLevel = LogLevel(sys::SH_LOG_DEBUG as i32);
}

static RECEIVER: Mutex<Option<Box<dyn Keep>>> = Mutex::new(None);

/// Sets the process's log receiver and the highest level that it gets. It may be called on any thread, several at once, while locks of
/// the library are held: it must not call the library, nor block for long. A panic in it is told on standard error only. When this
/// returns, the previous receiver is no longer called.
pub fn set_log<F>(level: LogLevel, log: F) -> Result<()>
where
    F: Fn(LogLevel, &str) + Send + Sync + 'static,
{
    let log = Arc::new(log);
    let user_data = Arc::as_ptr(&log).cast_mut().cast();
    change_log(level, Some(run_log::<F>), user_data, Some(Box::new(log)))
}

/// Switches logging off.
pub fn clear_log() -> Result<()> {
    change_log(LogLevel(0), None, std::ptr::null_mut(), None)
}

fn change_log(
    level: LogLevel,
    run: sys::sh_log_fn,
    data: *mut c_void,
    keep: Option<Box<dyn Keep>>,
) -> Result<()> {
    let mut receiver = RECEIVER.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the closure is kept until another one has taken its place.
    check(unsafe { sys::sh_set_log(level.0, run, data) })?;
    let before = std::mem::replace(&mut *receiver, keep);
    drop(receiver);
    drop(before);
    Ok(())
}

unsafe extern "C" fn run_log<F>(level: i32, message: *const c_char, user_data: *mut c_void)
where
    F: Fn(LogLevel, &str) + Send + Sync + 'static,
{
    // SAFETY: the Arc's contents, kept until nothing calls this any more.
    let log = unsafe { &*user_data.cast::<F>() };
    // SAFETY: base.h: a text that is valid during the call.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    // There is nobody to tell of a panic.
    let _ = guarded(|| log(LogLevel(level), &message));
}

/// Starts to record a trace of the whole process, which Perfetto and chrome://tracing open.
pub fn trace_start(path: impl AsRef<Path>) -> Result<()> {
    let path = c_path("path", path.as_ref())?;
    // SAFETY: the path outlives the call.
    check(unsafe { sys::sh_trace_start(path.as_ptr()) }).map(drop)
}

/// Ends the trace and completes its file. Blocks.
pub fn trace_stop() -> Result<()> {
    // SAFETY: nothing is passed.
    check(unsafe { sys::sh_trace_stop() }).map(drop)
}

/// Begins to answer `stagehand top` on a Unix socket; `None`: at the default path.
pub fn monitor_start(path: Option<&Path>) -> Result<()> {
    let path = path.map(|path| c_path("path", path)).transpose()?;
    // SAFETY: the path outlives the call.
    check(unsafe { sys::sh_monitor_start(path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr())) })
        .map(drop)
}

/// Ends that and removes the socket. Blocks.
pub fn monitor_stop() -> Result<()> {
    // SAFETY: nothing is passed.
    check(unsafe { sys::sh_monitor_stop() }).map(drop)
}
