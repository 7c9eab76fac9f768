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

/// The stream that a view is used on. Cloning is cheap and gives the same stream.
///
/// A stream that [`Device::stream`] made stays alive while a clone of it lives, and while a [`Runtime`](crate::Runtime) that has seen it
/// lives, unless [`Runtime::forget`](crate::Runtime::forget) lets it go: a runtime must not find a stream gone whose work may still use its
/// memory.
#[derive(Clone)]
pub struct Stream {
    raw: sys::sh_stream,
    owner: Option<Arc<Owner>>,
}

struct Owner {
    raw: sys::sh_stream,
    device: Device,
    /// The panics of launched closures that nobody was told of yet. Closures share it and not the stream: one that holds its own stream
    /// would have the stream's thread wait for itself.
    panics: Arc<Mutex<Option<String>>>,
    capturing: Capturing,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: made by sh_stream_create() on this device; it waits for the stream's work.
        unsafe { sys::sh_stream_destroy(self.device.as_raw(), self.raw) }
    }
}

impl Stream {
    /// The calling thread as the stream: an acquire returns when the bytes are there, a release means that the thread has finished
    /// with them.
    #[inline]
    pub fn host() -> &'static Stream {
        static HOST: Stream = Stream { raw: sys::SH_STREAM_HOST, owner: None };
        &HOST
    }

    pub(crate) fn new(device: &Device) -> Result<Stream> {
        let mut raw = 0;
        // SAFETY: plain values.
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

    /// A stream of the engine: a native handle (`CUstream`, `hipStream_t`) as an integer.
    ///
    /// # Safety
    /// It is a stream of the device on whose runtimes it is used, and stays alive until the steps in which it is used have ended, or
    /// [`Runtime::forget`](crate::Runtime::forget). Where it names each thread's own stream (2 on CUDA and HIP), a view, a capture or a launch
    /// on it ends on the thread on which it began, although the guard may be sent to another one.
    pub unsafe fn from_raw(raw: sys::sh_stream) -> Stream {
        Stream { raw, owner: None }
    }

    /// The native handle, or `SH_STREAM_HOST`.
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

    /// Waits until all work that was queued has finished. A panic of a closure that was launched here is told once, as
    /// [`Status::CALLBACK`]. Streams of [`Stream::from_raw`] and the host's are refused: their owner knows how to wait.
    pub fn synchronize(&self) -> Result<()> {
        let owner = self.made_here("synchronize")?;
        // SAFETY: the stream is alive and of this device.
        check(unsafe { sys::sh_stream_synchronize(owner.device.as_raw(), self.raw) })?;
        match owner.panics.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(text) => {
                Err(Error::new(Status::CALLBACK, format!("a closure on the stream panicked: {text}")))
            }
            None => Ok(()),
        }
    }

    /// Queues a closure. `busy` is the least time for which the stream counts as busy with it: the host backend sleeps what the closure
    /// leaves of it, the simulation advances its clock. The closure must not call the library, nor drop the last clone of a stream
    /// or a runtime: it could wait for itself. While the stream captures it is refused
    /// ([`Status::BUSY`]); see [`Runtime::capture`](crate::Runtime::capture).
    pub fn launch(&self, busy: Duration, closure: impl FnOnce() + Send + 'static) -> Result<()> {
        let owner = self.made_here("launch")?;
        owner.capturing.refuse("launch")?;
        let panics = owner.panics.clone();
        let guarded_closure = move || {
            if let Err(text) = guarded(closure) {
                panics.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
            }
        };
        // SAFETY: the stream is alive and of this device.
        check(unsafe { launch(owner.device.as_raw(), self.raw, busy, guarded_closure) }).map(drop)
    }

    fn made_here(&self, what: &str) -> Result<&Owner> {
        self.owner.as_deref().ok_or_else(|| {
            Error::new(
                Status::INVALID_ARGUMENT,
                format!("{what}: the stream was not made by Device::stream()"),
            )
        })
    }
}

/// Queues a closure that does not panic.
///
/// # Safety
/// `stream` is a living stream of the device.
pub(crate) unsafe fn launch(
    device: *mut sys::sh_device,
    stream: sys::sh_stream,
    busy: Duration,
    closure: impl FnOnce() + Send + 'static,
) -> sys::sh_status {
    type Work = Box<dyn FnOnce() + Send>;

    unsafe extern "C" fn run(user_data: *mut c_void) {
        // SAFETY: from Box::into_raw() below; the library calls it once.
        let work = unsafe { Box::from_raw(user_data.cast::<Work>()) };
        // What the closure owns may panic too when it is dropped.
        let _ = guarded(work);
    }

    let work: *mut Work = Box::into_raw(Box::new(Box::new(closure)));
    let busy_ns = i64::try_from(busy.as_nanos()).unwrap_or(i64::MAX);
    // SAFETY: the stream is alive, says the caller; the work is handed over.
    let status = unsafe { sys::sh_stream_launch(device, stream, Some(run), work.cast(), busy_ns) };
    if status < 0 {
        // SAFETY: a launch that failed has taken over nothing.
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
