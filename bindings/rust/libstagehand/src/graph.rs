//! Graphs: steps that an engine captures into a graph of its driver. The engine launches the graph again and again, and
//! the streaming is part of the graph.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libstagehand_sys as sys;

use crate::error::{Error, Result, Status, check};
use crate::{Runtime, Stream};

/// Counts the captures that are under way, and the captures that were cancelled.
///
/// Calls that would queue a closure are refused while a capture is under way. The driver's graph would call the closure
/// with each launch, but a closure of this crate can be called only once. A view compares the number of cancelled
/// captures at its acquire and at its release. A cancelled capture releases all views that were acquired in it. No
/// other view can be held then, because a capture begins only when no view is held.
#[derive(Default)]
pub(crate) struct Capturing {
    under_way: AtomicU32,
    cancelled: AtomicU64,
}

impl Capturing {
    #[inline]
    pub(crate) fn cancelled(&self) -> u64 {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(crate) fn refuse(&self, what: &str) -> Result<()> {
        if self.under_way.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let text = format!("{what}: a capture is under way, and its graph would call the closure with each launch");
        Err(Error::new(Status::INVALID_STATE, text))
    }

    fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Runtime {
    /// Begins this runtime's part of a capture of the driver that is under way on `stream`. Every acquire and release
    /// on the runtime becomes part of the driver's graph until the capture ends. Call [`plan`](Runtime::plan) before.
    ///
    /// The engine makes the driver's calls itself, and has to keep these rules:
    ///
    /// - The engine launches the driver's graph only while a [`Launch`] of its [`Graph`] lives. The engine drops this
    ///   `Launch` and does not leak it.
    /// - The engine does not capture closures of [`Stream::launch`] or of [`on_load`](crate::BlockDesc::on_load),
    ///   because the driver would call a closure again after the closure is gone. This crate refuses such closures on
    ///   `stream` and in `on_load` while the capture is under way. The engine must avoid them on other streams of this
    ///   crate that take part in the capture.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`] on the host's stream.
    /// - [`Status::INVALID_STATE`] if `stream` does not capture, if a step or another capture is under way, or if there
    ///   is no plan or it has to change.
    /// - [`Status::INVALID_STATE`] if views are held.
    /// - [`Status::UNSUPPORTED`] if the backend has no graphs.
    pub fn capture<'a>(&'a self, stream: &'a Stream) -> Result<Capture<'a>> {
        let capture = Capture { runtime: self, stream, under_way: true };
        capture.tell(Capturing::begin);
        // SAFETY: the runtime and the stream are alive.
        let begun = check(unsafe { sys::sh_capture_begin(self.as_raw(), stream.as_raw()) });
        self.keep(stream); // the stream must outlive the capture even if the capture is leaked
        if let Err(error) = begun {
            capture.tell(Capturing::end);
            std::mem::forget(capture);
            return Err(error);
        }
        Ok(capture)
    }
}

/// A capture that is under way.
///
/// Dropping this value ends the capture without a graph and releases the views that are held. Dropping such a view
/// later does nothing. The engine must not launch the driver's graph after that.
#[must_use = "the capture ends when this is dropped"]
#[derive(Debug)]
pub struct Capture<'a> {
    runtime: &'a Runtime,
    stream: &'a Stream,
    under_way: bool,
}

impl<'a> Capture<'a> {
    /// Ends the capture. Release all views before this call, and end the driver's capture after it.
    ///
    /// # Errors
    /// - [`Status::INVALID_STATE`] if views are held, in which case the capture goes on, or if the capture has ended
    ///   already.
    /// - Another status if the driver fails. The capture has ended, and there is no graph.
    pub fn end(&mut self) -> Result<Graph<'a>> {
        if !self.under_way {
            return Err(Error::new(Status::INVALID_STATE, "the capture has ended already"));
        }
        let mut raw = std::ptr::null_mut();
        self.finish(&mut raw)?;
        Ok(Graph { runtime: self.runtime, raw })
    }

    fn finish(&mut self, graph: *mut *mut sys::sh_graph) -> Result<()> {
        if graph.is_null() {
            self.runtime.capturing.cancelled.fetch_add(1, Ordering::AcqRel);
        }
        // SAFETY: the runtime and the stream are alive. `graph` is NULL or points to a place for a graph.
        let status = unsafe { sys::sh_capture_end(self.runtime.as_raw(), self.stream.as_raw(), graph) };
        if Status(status) != Status::INVALID_STATE {
            self.under_way = false;
            self.tell(Capturing::end);
        }
        check(status).map(drop)
    }

    fn tell(&self, what: fn(&Capturing)) {
        what(&self.runtime.capturing);
        if let Some(stream) = self.stream.capturing() {
            what(stream);
        }
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.under_way {
            let _ = self.finish(std::ptr::null_mut());
        }
    }
}

/// The library's record of a captured step. The graph holds the runtime's plan until it is dropped. The drop waits
/// until launches have finished. The engine must not launch the driver's graph after that.
pub struct Graph<'runtime> {
    runtime: &'runtime Runtime,
    raw: *mut sys::sh_graph,
}

// SAFETY: functions may be called from any thread unless their comment says otherwise (base.h). No function of graph.h
// says otherwise.
unsafe impl Send for Graph<'_> {}
// SAFETY: as for Send. The library returns an error if two threads enter the graph at once.
unsafe impl Sync for Graph<'_> {}

impl Graph<'_> {
    /// Prepares one launch of the driver's graph on `stream`. The engine makes this launch while the guard lives, or
    /// does not launch at all. The call loads the missing bytes of resident blocks. Blocks if a source is not pinned.
    ///
    /// # Errors
    /// - [`Status::STALE`] if the plan has changed. Capture the step anew.
    /// - [`Status::HELD`] if a view holds memory that the graph would overwrite.
    /// - [`Status::INVALID_STATE`] if a source that the graph reads is being updated.
    /// - [`Status::INVALID_STATE`] if a graph has been entered already, or if a capture is under way.
    /// - The errors of loads.
    pub fn launch<'a>(&'a self, stream: &'a Stream) -> Result<Launch<'a>> {
        // SAFETY: the graph and the stream are alive.
        let status = unsafe { sys::sh_graph_enter(self.raw, stream.as_raw()) };
        self.runtime.keep(stream);
        check(status)?;
        Ok(Launch { runtime: self.runtime, raw: self.raw, stream })
    }

    /// Returns the C handle. The handle is valid while this graph lives.
    pub fn as_raw(&self) -> *mut sys::sh_graph {
        self.raw
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: the graph was made once and is destroyed once.
        unsafe { sys::sh_graph_destroy(self.raw) }
    }
}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Graph").field(&self.raw).finish()
    }
}

/// The time in which the engine launches the driver's graph once, on one stream. An acquire of a streamed block returns
/// [`Status::INVALID_STATE`] while this guard lives. Other work of the runtime comes after the launch once the guard is
/// dropped.
#[must_use = "the launch ends when this is dropped"]
pub struct Launch<'a> {
    runtime: &'a Runtime,
    raw: *mut sys::sh_graph,
    stream: &'a Stream,
}

// SAFETY: as for Graph.
unsafe impl Send for Launch<'_> {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for Launch<'_> {}

impl Launch<'_> {
    /// Ends the launch now. The launch has ended even if this returns an error. Unlike a drop, this call returns the
    /// error.
    pub fn end(self) -> Result<()> {
        check(std::mem::ManuallyDrop::new(self).leave()).map(drop)
    }

    fn leave(&mut self) -> sys::sh_status {
        // SAFETY: the graph and the stream are borrowed. The graph was entered once and is left once.
        let status = unsafe { sys::sh_graph_leave(self.raw, self.stream.as_raw()) };
        self.runtime.keep(self.stream);
        status
    }
}

impl Drop for Launch<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Launch").field(&self.raw).field(self.stream).finish()
    }
}
