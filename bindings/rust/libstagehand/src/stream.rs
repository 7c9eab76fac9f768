//! Streams: ordered queues of work on a device.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libstagehand_sys as sys;

use crate::Device;
use crate::callback::guarded;
use crate::error::{Error, Result, Status, check};
use crate::graph::Capturing;

/// A stream that an engine uses views on. A clone is cheap and refers to the same stream.
///
/// A stream that [`Device::stream`] made stays alive while a clone of it lives. The stream also stays alive while a
/// [`Runtime`](crate::Runtime) that has seen the stream lives, until [`Runtime::forget`](crate::Runtime::forget). The
/// reason is that a stream must not end while its work may still use the runtime's memory. A
/// [`Spiller`](crate::Spiller) keeps the streams that it has seen until the spiller ends.
#[derive(Clone)]
pub struct Stream {
    raw: sys::sh_stream,
    owner: Option<Arc<Owner>>,
}

struct Owner {
    raw: sys::sh_stream,
    device: Device,
    /// The first panic of a launched closure that no call has returned yet. Closures share this field and not the
    /// stream. A closure that holds its own stream could make the stream's thread wait for itself.
    panics: Arc<Mutex<Option<String>>>,
    capturing: Capturing,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: the stream is from sh_stream_create() on this device. The call waits for the stream's work.
        unsafe { sys::sh_stream_destroy(self.device.as_raw(), self.raw) }
    }
}

impl Stream {
    /// Returns the stream that stands for the calling thread. An acquire on this stream returns when the bytes are on
    /// the device. A release means that the thread has finished with the bytes.
    #[inline]
    pub fn host() -> &'static Stream {
        static HOST: Stream = Stream { raw: sys::SH_STREAM_HOST, owner: None };
        &HOST
    }

    pub(crate) fn new(device: &Device) -> Result<Stream> {
        let mut raw = 0;
        // SAFETY: the device is alive.
        check(unsafe { sys::sh_stream_create(device.as_raw(), &mut raw) })?;
        Ok(Stream {
            raw,
            owner: Some(Arc::new(Owner {
                raw,
                device: device.clone(),
                panics: Arc::default(),
                capturing: Capturing::default(),
            })),
        })
    }

    /// Wraps a stream of the engine: a native handle (`CUstream`, `hipStream_t`) as an integer.
    ///
    /// # Safety
    /// The handle must be a stream of the device of the runtimes and spillers that use it. The stream must stay alive
    /// until the steps in which it is used have ended, or until [`Runtime::forget`](crate::Runtime::forget). A stream
    /// of [`Spiller`](crate::Spiller) must stay alive until the tickets that were saved, prefetched or restored on it,
    /// and the tickets that share a copy with these, have ended.
    ///
    /// The handle 2 of CUDA and HIP names each thread's own stream. A view, a capture or a launch on this stream must
    /// end on the thread on which it began, although the guard is `Send`.
    pub unsafe fn from_raw(raw: sys::sh_stream) -> Stream {
        Stream { raw, owner: None }
    }

    /// Returns the native handle, or `SH_STREAM_HOST`.
    #[inline]
    pub fn as_raw(&self) -> sys::sh_stream {
        self.raw
    }

    #[inline]
    pub(crate) fn is_owned(&self) -> bool {
        self.owner.is_some()
    }

    pub(crate) fn capturing(&self) -> Option<&Capturing> {
        self.owner.as_deref().map(|owner| &owner.capturing)
    }

    /// Waits until all work that was queued has finished.
    ///
    /// # Errors
    /// - [`Status::CALLBACK`] if a closure of [`launch`](Stream::launch) has panicked since the last call. The text is
    ///   that of the first panic.
    /// - [`Status::INVALID_ARGUMENT`] for the host's stream and for streams of [`Stream::from_raw`]. The engine has to
    ///   wait for such streams itself.
    pub fn synchronize(&self) -> Result<()> {
        let owner = self.made_here("synchronize")?;
        // SAFETY: the stream is alive and belongs to this device.
        check(unsafe { sys::sh_stream_synchronize(owner.device.as_raw(), self.raw) })?;
        match owner.panics.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(text) => Err(Error::new(Status::CALLBACK, format!("a closure on the stream panicked: {text}"))),
            None => Ok(()),
        }
    }

    /// Queues a closure. `busy` is the least time for which the stream counts as busy with the closure. The host
    /// backend sleeps for the part of this time that the closure did not take. A simulation advances its clock.
    ///
    /// The closure must not call the library. It must not drop the last clone of a stream or a runtime, because it
    /// could then wait for itself.
    ///
    /// # Errors
    /// - [`Status::INVALID_STATE`] if the stream captures; see [`Runtime::capture`](crate::Runtime::capture).
    /// - [`Status::INVALID_ARGUMENT`] for the host's stream and for streams of [`Stream::from_raw`].
    pub fn launch(&self, busy: Duration, closure: impl FnOnce() + Send + 'static) -> Result<()> {
        let owner = self.made_here("launch")?;
        owner.capturing.refuse("launch")?;
        let panics = owner.panics.clone();
        let guarded_closure = move || {
            if let Err(text) = guarded(closure) {
                panics.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
            }
        };
        // SAFETY: the stream is alive and belongs to this device.
        check(unsafe { launch(owner.device.as_raw(), self.raw, busy, guarded_closure) }).map(drop)
    }

    fn made_here(&self, what: &str) -> Result<&Owner> {
        self.owner.as_deref().ok_or_else(|| {
            Error::new(Status::INVALID_ARGUMENT, format!("{what}: the stream was not made by Device::stream()"))
        })
    }
}

/// Queues a closure. The only trace of a panic of the closure is its message on standard error.
///
/// # Safety
/// `stream` must be a living stream of the device.
pub(crate) unsafe fn launch(
    device: *mut sys::sh_device,
    stream: sys::sh_stream,
    busy: Duration,
    closure: impl FnOnce() + Send + 'static,
) -> sys::sh_status {
    type Work = Box<dyn FnOnce() + Send>;

    unsafe extern "C" fn run(user_data: *mut c_void) {
        // SAFETY: the pointer is from Box::into_raw() below, and the library calls this function once.
        let work = unsafe { Box::from_raw(user_data.cast::<Work>()) };
        // The values that the closure owns may panic too when they are dropped.
        let _ = guarded(work);
    }

    let work: *mut Work = Box::into_raw(Box::new(Box::new(closure)));
    let busy_ns = i64::try_from(busy.as_nanos()).unwrap_or(i64::MAX);
    // SAFETY: the caller promises that the stream is alive. The library takes over the work.
    let status = unsafe { sys::sh_stream_launch(device, stream, Some(run), work.cast(), busy_ns) };
    if status < 0 {
        // SAFETY: a launch that failed has not taken over the work.
        drop(unsafe { Box::from_raw(work) });
    }
    status
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.raw {
            sys::SH_STREAM_HOST => formatter.write_str("Stream::host()"),
            raw => formatter.debug_tuple("Stream").field(&raw).finish(),
        }
    }
}
