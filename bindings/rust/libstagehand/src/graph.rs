//! Graphs: steps that an engine captures into a graph of its driver and launches again and again, with the streaming inside.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libstagehand_sys as sys;

use crate::error::{Error, Result, Status, check};
use crate::{Runtime, Stream};

/// How many captures are under way, as what may be asked to queue a closure sees it: a driver's graph would call it with each launch, and
/// closures of this crate are called once. And how many were cancelled: what was held then was acquired in the capture, which begins only
/// where nothing is held, and is released by its end.
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
        let text =
            format!("{what}: a capture is under way, whose graph would call the closure with each launch");
        Err(Error::new(Status::BUSY, text))
    }

    fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Runtime {
    /// Begins this runtime's part of a capture of the driver that is under way on `stream`: until it ends, every acquire and release
    /// on the runtime belongs to the capture, and becomes part of the driver's graph. [`plan`](Runtime::plan) comes before.
    ///
    /// The driver's calls are the engine's, and so is what they must not do: launch the driver's graph elsewhere than while a [`Launch`] of
    /// its [`Graph`] lives, which is then dropped and not forgotten; and capture closures of [`Stream::launch`], which would be called again
    /// after they are gone. On `stream`, and in [`on_load`](crate::BlockDesc::on_load), these are refused meanwhile; on other streams of
    /// this crate that the engine lets take part, it has to leave them be.
    pub fn capture<'a>(&'a self, stream: &'a Stream) -> Result<Capture<'a>> {
        let capture = Capture { runtime: self, stream, under_way: true };
        capture.tell(Capturing::begin);
        // SAFETY: the runtime and the stream are alive.
        let begun = check(unsafe { sys::sh_capture_begin(self.as_raw(), stream.as_raw()) });
        self.keep(stream); // also if the capture is leaked
        if let Err(error) = begun {
            capture.tell(Capturing::end);
            std::mem::forget(capture);
            return Err(error);
        }
        Ok(capture)
    }
}

/// A capture that is under way. Dropping it ends it without a graph; the driver's graph must not be launched then. Views that are held then
/// are released by that, and do nothing when they are dropped.
#[must_use = "the capture ends when this is dropped"]
#[derive(Debug)]
pub struct Capture<'a> {
    runtime: &'a Runtime,
    stream: &'a Stream,
    under_way: bool,
}

impl<'a> Capture<'a> {
    /// Ends it, before the engine ends the driver's capture; views are released before. It has ended even if this is an error, but for
    /// [`Status::INVALID_STATE`]: views are held, and it goes on.
    pub fn end(&mut self) -> Result<Graph<'a>> {
        if !self.under_way {
            return Err(Error::new(Status::INVALID_STATE, "the capture has ended"));
        }
        let mut raw = std::ptr::null_mut();
        self.finish(&mut raw)?;
        Ok(Graph { runtime: self.runtime, raw })
    }

    fn finish(&mut self, graph: *mut *mut sys::sh_graph) -> Result<()> {
        if graph.is_null() {
            self.runtime.capturing.cancelled.fetch_add(1, Ordering::AcqRel);
        }
        // SAFETY: the runtime and the stream are alive; NULL, or a place for a graph.
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

/// What the library knows of a captured step. It holds the runtime's plan until it is dropped, which waits until launches have finished;
/// the driver's graph must not be launched after that.
pub struct Graph<'runtime> {
    runtime: &'runtime Runtime,
    raw: *mut sys::sh_graph,
}

// SAFETY: base.h: functions may be called from any thread unless their comment says otherwise, and those of graph.h do not.
unsafe impl Send for Graph<'_> {}
// SAFETY: the same: two threads that launch it at once are told so.
unsafe impl Sync for Graph<'_> {}

impl Graph<'_> {
    /// Prepares one launch of the driver's graph on `stream`, which the engine makes, or leaves, while the guard lives. It brings what must
    /// be resident, and is [`Status::STALE`] where the plan has changed: capture anew. Blocks for sources that are not pinned.
    pub fn launch<'a>(&'a self, stream: &'a Stream) -> Result<Launch<'a>> {
        // SAFETY: the graph and the stream are alive.
        let status = unsafe { sys::sh_graph_enter(self.raw, stream.as_raw()) };
        self.runtime.keep(stream);
        check(status)?;
        Ok(Launch { runtime: self.runtime, raw: self.raw, stream })
    }

    /// The C handle, valid while this lives.
    pub fn as_raw(&self) -> *mut sys::sh_graph {
        self.raw
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe { sys::sh_graph_destroy(self.raw) }
    }
}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Graph").field(&self.raw).finish()
    }
}

/// The time in which the driver's graph is launched once, on one stream. Other work of the runtime comes after it, once this is dropped.
#[must_use = "the launch ends when this is dropped"]
pub struct Launch<'a> {
    runtime: &'a Runtime,
    raw: *mut sys::sh_graph,
    stream: &'a Stream,
}

// SAFETY: as for Graph.
unsafe impl Send for Launch<'_> {}
// SAFETY: a shared reference does nothing.
unsafe impl Sync for Launch<'_> {}

impl Launch<'_> {
    /// Ends it now, and says what an end by dropping cannot. It has ended even if this is an error.
    pub fn end(self) -> Result<()> {
        check(std::mem::ManuallyDrop::new(self).leave()).map(drop)
    }

    fn leave(&mut self) -> sys::sh_status {
        // SAFETY: the graph and the stream are borrowed; entered once, left once.
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
