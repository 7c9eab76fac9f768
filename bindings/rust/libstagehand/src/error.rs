//! Errors: a status of the C interface with the text that the library gave for it.

use std::ffi::CStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libstagehand_sys as sys;

use crate::callback;

/// A status of the C interface. This is a newtype and not an enum, because a newer library may return values that this
/// crate does not know.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(pub i32);

/// The group of an error: the hundreds of its status. The group says whose fault the error is and what is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Group {
    /// −1xx: a mistake of the caller. Nothing has changed, unless the documentation of the call says otherwise.
    Caller,
    /// −2xx: memory and budget. Nothing has changed.
    Memory,
    /// −3xx: an operation failed. The objects stay usable, and the call may be tried again.
    Operation,
    /// −4xx: the backend or its driver.
    Backend,
    /// −5xx: an object can no longer be used, only dropped.
    Lost,
    /// −6xx and values of no other group: a fault of the library itself.
    Library,
}

macro_rules! statuses {
    ($($name:ident = $value:ident),* $(,)?) => {
        impl Status {
            $(
                #[doc = concat!("[`", stringify!($value), "`](sys::", stringify!($value), ")")]
                pub const $name: Status = Status(sys::$value as i32);
            )*
        }
    };
}

statuses! {
    OK = SH_OK,
    NOT_READY = SH_NOT_READY,
    KEPT = SH_KEPT,
    INVALID_ARGUMENT = SH_ERROR_INVALID_ARGUMENT,
    INVALID_HANDLE = SH_ERROR_INVALID_HANDLE,
    INVALID_STRUCT = SH_ERROR_INVALID_STRUCT,
    INVALID_STATE = SH_ERROR_INVALID_STATE,
    NOT_FOUND = SH_ERROR_NOT_FOUND,
    UNSUPPORTED = SH_ERROR_UNSUPPORTED,
    FORKED = SH_ERROR_FORKED,
    STALE = SH_ERROR_STALE,
    BUDGET = SH_ERROR_BUDGET,
    OUT_OF_DEVICE_MEMORY = SH_ERROR_OUT_OF_DEVICE_MEMORY,
    OUT_OF_HOST_MEMORY = SH_ERROR_OUT_OF_HOST_MEMORY,
    HELD = SH_ERROR_HELD,
    BUSY = SH_ERROR_BUSY,
    SOURCE = SH_ERROR_SOURCE,
    CALLBACK = SH_ERROR_CALLBACK,
    IO = SH_ERROR_IO,
    CANCELLED = SH_ERROR_CANCELLED,
    CHECKSUM = SH_ERROR_CHECKSUM,
    BACKEND = SH_ERROR_BACKEND,
    BACKEND_UNAVAILABLE = SH_ERROR_BACKEND_UNAVAILABLE,
    BACKEND_LOAD = SH_ERROR_BACKEND_LOAD,
    RUNTIME_LOST = SH_ERROR_RUNTIME_LOST,
    DEVICE_LOST = SH_ERROR_DEVICE_LOST,
    INTERNAL = SH_ERROR_INTERNAL,
    DUPLICATE_LIBRARY = SH_ERROR_DUPLICATE_LIBRARY,
}

impl Status {
    /// Returns the short English name, e.g. `SH_ERROR_BUDGET`.
    pub fn name(self) -> &'static str {
        // SAFETY: the text is static and never NULL.
        unsafe { CStr::from_ptr(sys::sh_status_string(self.0)) }.to_str().unwrap_or("SH_?")
    }

    /// Returns the group of an error. The group means nothing if the status is a success.
    pub fn group(self) -> Group {
        match self.0 / 100 {
            -1 => Group::Caller,
            -2 => Group::Memory,
            -3 => Group::Operation,
            -4 => Group::Backend,
            -5 => Group::Lost,
            _ => Group::Library,
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The error of a call that failed: its status and the library's text. The text says what the caller asked for, what
/// was wrong, and what would work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {text}")]
pub struct Error {
    status: Status,
    text: String,
}

impl Error {
    /// Returns why the call failed.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns whose fault the error is and what is damaged.
    pub fn group(&self) -> Group {
        self.status.group()
    }

    /// Returns the text without the status.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Makes an error of this crate with a status of the C interface.
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Error {
        Error { status, text: text.into() }
    }

    /// Reads the error of the call that has just failed on this thread.
    #[cold]
    pub(crate) fn last(status: sys::sh_status) -> Error {
        // SAFETY: a NULL buffer is allowed if the capacity is 0.
        let length = unsafe { sys::sh_last_error(std::ptr::null_mut(), 0) } as usize;
        let mut text = vec![0u8; length + 1];
        // SAFETY: the pointer and the capacity describe `text`.
        unsafe { sys::sh_last_error(text.as_mut_ptr().cast(), text.len() as u64) };
        text.truncate(length);
        let mut text = String::from_utf8_lossy(&text).into_owned();
        if Status(status) == Status::CALLBACK {
            if let Some(said) = callback::said(&text) {
                text = format!("{text}: {said}");
            }
        }
        Error { status: Status(status), text }
    }
}

/// The result of a call that may fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns a success as it is, and turns a failure into an error.
#[inline]
pub(crate) fn check(status: sys::sh_status) -> Result<Status> {
    if status < 0 { Err(Error::last(status)) } else { Ok(Status(status)) }
}

/// Converts a text for the C interface.
pub(crate) fn c_string(what: &str, text: &str) -> Result<std::ffi::CString> {
    std::ffi::CString::new(text)
        .map_err(|_| Error::new(Status::INVALID_ARGUMENT, format!("{what}: {text:?} holds a NUL character")))
}

/// Converts a path for the C interface. A path may hold any bytes but NUL.
pub(crate) fn c_path(what: &str, path: &Path) -> Result<std::ffi::CString> {
    std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(Status::INVALID_ARGUMENT, format!("{what}: {path:?} holds a NUL character")))
}

/// Reads a text from a fixed-size field of a C struct.
pub(crate) fn field_text(field: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = field.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Makes a C struct with the values that its initialiser sets: zeros, and struct_size.
macro_rules! init {
    ($name:ident) => {{
        let mut value = std::mem::MaybeUninit::<libstagehand_sys::$name>::zeroed();
        // SAFETY: all-zero is a valid value of these plain structs.
        let value_mut = unsafe { value.assume_init_mut() };
        value_mut.struct_size = std::mem::size_of::<libstagehand_sys::$name>() as u32;
        *value_mut
    }};
}
pub(crate) use init;
