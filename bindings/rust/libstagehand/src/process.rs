//! Calls for the whole process: version, log, trace and monitor.

use std::ffi::{CStr, OsString, c_char, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use libstagehand_sys as sys;

use crate::Scope;
use crate::callback::guarded;
use crate::error::{Result, c_path, check, init};
use crate::source::Keep;

/// Returns the version of the library at run time as major × 1,000,000 + minor × 1,000 + patch.
pub fn version() -> u32 {
    // SAFETY: the call has no preconditions.
    unsafe { sys::sh_version() }
}

/// How serious a log line is. Lower values are more serious.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogLevel(pub i32);

impl LogLevel {
    /// An operation failed.
    pub const ERROR: LogLevel = LogLevel(sys::SH_LOG_ERROR as i32);
    /// Something is not as it should be.
    pub const WARNING: LogLevel = LogLevel(sys::SH_LOG_WARNING as i32);
    /// Events that happen now and then.
    pub const INFO: LogLevel = LogLevel(sys::SH_LOG_INFO as i32);
    /// All events.
    pub const DEBUG: LogLevel = LogLevel(sys::SH_LOG_DEBUG as i32);
}

static RECEIVER: Mutex<Option<Box<dyn Keep>>> = Mutex::new(None);

/// Sets the process's log receiver, and the highest level that the receiver gets. The previous receiver is not called
/// any more when this returns.
///
/// The library may call the closure on any thread, several times at once, and while it holds locks. The closure must
/// not call the library and must not block for long. A panic of the closure leaves only its message on standard error.
///
/// # Errors
/// [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if `level` is out of range.
pub fn set_log<F>(level: LogLevel, log: F) -> Result<()>
where
    F: Fn(LogLevel, &str) + Send + Sync + 'static,
{
    let log = Arc::new(log);
    let user_data = Arc::as_ptr(&log).cast_mut().cast();
    change_log(level, Some(run_log::<F>), user_data, Some(Box::new(log)))
}

/// Switches logging off. The receiver is not called any more when this returns.
pub fn clear_log() -> Result<()> {
    change_log(LogLevel(0), None, std::ptr::null_mut(), None)
}

fn change_log(level: LogLevel, run: sys::sh_log_fn, data: *mut c_void, keep: Option<Box<dyn Keep>>) -> Result<()> {
    let mut receiver = RECEIVER.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: `keep` holds the closure until another receiver is set.
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
    // SAFETY: this points into the Arc, which lives until the library calls this function no more.
    let log = unsafe { &*user_data.cast::<F>() };
    // SAFETY: the text is valid during the call (base.h).
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    // The library takes no error from a log receiver.
    let _ = guarded(|| log(LogLevel(level), &message));
}

/// Records a trace of the whole process into the file `path`, until the scope ends. Perfetto and chrome://tracing open
/// such files. The end of the scope completes the file.
///
/// # Errors
/// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if a trace is being recorded already.
/// - [`Status::IO`](crate::Status::IO) if the file cannot be written.
pub fn trace_start(path: impl AsRef<Path>) -> Result<Scope<'static>> {
    let path = c_path("path", path.as_ref())?;
    // SAFETY: the path outlives the call.
    Scope::begin(|out| unsafe { sys::sh_trace_start(path.as_ptr(), out) })
}

/// Answers `stagehand top` on a Unix socket at `path` until the scope ends, by a control without a device. `None` means
/// the default path.
///
/// # Errors
/// - [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if the path is empty or too long.
/// - [`Status::IO`](crate::Status::IO) if the socket cannot be made at the path.
/// - [`Status::BACKEND_LOAD`](crate::Status::BACKEND_LOAD) if the plugin is not installed.
pub fn monitor_start(path: Option<&Path>) -> Result<Scope<'static>> {
    let address = path.map(|path| {
        let mut address = OsString::from("unix:");
        address.push(path);
        c_path("path", Path::new(&address))
    });
    let address = address.transpose()?;
    let mut options = init!(sh_control_options);
    options.address = address.as_ref().map_or(std::ptr::null(), |address| address.as_ptr());
    let (device, info) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the address outlives the call, and the call copies it. struct_size is set.
    Scope::begin(|out| unsafe { sys::sh_control_start(device, &options, info, out) })
}
