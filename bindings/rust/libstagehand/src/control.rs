//! Control: other processes pause and resume the memory of a device by HTTP.

use std::fmt;

use libstagehand_sys as sys;

use crate::Device;
use crate::error::{Result, c_string, check, field_text, init};

/// Says where [`Device::serve_control`] answers, and whom. More fields may come, so end the struct with
/// `..Default::default()`.
#[derive(Clone, Copy, Default)]
pub struct ControlOptions<'a> {
    /// The path of a Unix socket, or `127.0.0.1:PORT`, `localhost:PORT` or `[::1]:PORT`. `None`: a Unix socket at the
    /// default path.
    pub address: Option<&'a str>,
    /// Each request must have it: 16 to 256 visible characters of ASCII. TCP requires a token.
    pub token: Option<&'a str>,
}

impl fmt::Debug for ControlOptions<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.map(|_| "...");
        formatter.debug_struct("ControlOptions").field("address", &self.address).field("token", &token).finish()
    }
}

impl Device {
    /// Has other processes pause and resume the memory of the device by HTTP, until the result is dropped. The requests
    /// run on threads of the library. `docs/control.md` describes them. Blocks while it loads the server, a plugin.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if the address or the token is not allowed.
    /// - [`Status::IO`](crate::Status::IO) if the socket could not be made.
    /// - [`Status::BACKEND_LOAD`](crate::Status::BACKEND_LOAD) if the plugin is not installed.
    pub fn serve_control(&self, options: &ControlOptions<'_>) -> Result<Control> {
        let address = options.address.map(|address| c_string("address", address)).transpose()?;
        let token = options.token.map(|token| c_string("token", token)).transpose()?;
        let mut raw = init!(sh_control_options);
        raw.address = address.as_ref().map_or(std::ptr::null(), |address| address.as_ptr());
        raw.token = token.as_ref().map_or(std::ptr::null(), |token| token.as_ptr());
        let mut info = init!(sh_control_info);
        let mut scope = std::ptr::null_mut();
        // SAFETY: the texts outlive the call, and the call copies them. struct_size is set.
        check(unsafe { sys::sh_control_start(self.as_raw(), &raw, &mut info, &mut scope) })?;
        Ok(Control { scope, address: field_text(&info.address), port: info.port, device: self.clone() })
    }
}

/// Answers requests of other processes until it is dropped. The drop waits for a pause or a resume that a request has
/// begun.
pub struct Control {
    scope: *mut sys::sh_scope,
    address: String,
    port: u32,
    // Keeps the device open: requests would fail without it.
    device: Device,
}

// SAFETY: every call of the C interface may be made by any thread.
unsafe impl Send for Control {}
// SAFETY: as above.
unsafe impl Sync for Control {}

impl Control {
    /// Returns the path of the Unix socket, or the address with its port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the TCP port. 0: a Unix socket.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Returns the device whose memory the control pauses and resumes.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: the control is alive, and is not used any more.
        unsafe { sys::sh_scope_end(self.scope) };
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Control").field("device", &self.device).finish_non_exhaustive()
    }
}
