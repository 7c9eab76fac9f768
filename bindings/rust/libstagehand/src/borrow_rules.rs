//! Examples that the compiler must refuse. Each of them comes after an example that must compile, and differs from it
//! only by the mistake.
//!
//! A runtime is not dropped while a view of it lives.
//! ```
//! # use libstagehand::*;
//! # fn main() -> Result<()> {
//! let device = Device::open("host")?;
//! let runtime = Runtime::new(&device)?;
//! let block = runtime.register_block(BlockDesc::from_source(Source::owned(vec![1; 64])))?;
//! let view = runtime.acquire(block, Stream::host())?;
//! drop(view);
//! drop(runtime);
//! # Ok(()) }
//! ```
//! ```compile_fail,E0505
//! # use libstagehand::*;
//! # fn main() -> Result<()> {
//! let device = Device::open("host")?;
//! let runtime = Runtime::new(&device)?;
//! let block = runtime.register_block(BlockDesc::from_source(Source::owned(vec![1; 64])))?;
//! let view = runtime.acquire(block, Stream::host())?;
//! drop(runtime);
//! drop(view);
//! # Ok(()) }
//! ```
//!
//! A view is not used after its release.
//! ```
//! # use libstagehand::*;
//! fn use_it(view: View<'_>) -> Result<()> {
//!     let _address = view.address();
//!     view.release()
//! }
//! ```
//! ```compile_fail,E0382
//! # use libstagehand::*;
//! fn use_it(view: View<'_>) -> Result<()> {
//!     view.release()?;
//!     let _address = view.address();
//!     Ok(())
//! }
//! ```
//!
//! The bytes of a view do not outlive the view.
//! ```
//! # use libstagehand::*;
//! fn first(view: View<'_>) -> Option<u8> {
//!     view.bytes().map(|bytes| bytes[0])
//! }
//! ```
//! ```compile_fail,E0515
//! # use libstagehand::*;
//! fn all<'a>(view: View<'a>) -> Option<&'a [u8]> {
//!     view.bytes()
//! }
//! ```
//!
//! A runtime is not dropped while members of a set of it are held. They may outlive the value that names the set.
//! ```
//! # use libstagehand::*;
//! fn once(runtime: Runtime, experts: Vec<BlockDesc>) -> Result<()> {
//!     let members = runtime.register_set(experts, &SetOptions::default())?.acquire(&[0], Stream::host())?;
//!     drop(members);
//!     drop(runtime);
//!     Ok(())
//! }
//! ```
//! ```compile_fail,E0505
//! # use libstagehand::*;
//! fn once(runtime: Runtime, experts: Vec<BlockDesc>) -> Result<()> {
//!     let members = runtime.register_set(experts, &SetOptions::default())?.acquire(&[0], Stream::host())?;
//!     drop(runtime);
//!     drop(members);
//!     Ok(())
//! }
//! ```
//!
//! The bytes of members do not outlive their release.
//! ```
//! # use libstagehand::*;
//! fn first(members: Members<'_>) -> Option<u8> {
//!     members.bytes(0).map(|bytes| bytes[0])
//! }
//! ```
//! ```compile_fail,E0515
//! # use libstagehand::*;
//! fn all<'a>(members: Members<'a>) -> Option<&'a [u8]> {
//!     members.bytes(0)
//! }
//! ```
//!
//! A runtime is not dropped while a graph of it lives.
//! ```
//! # use libstagehand::*;
//! fn once(mut capture: Capture<'_>, stream: &Stream) -> Result<()> {
//!     let graph = capture.end()?;
//!     graph.launch(stream)?.end()
//! }
//! ```
//! ```compile_fail,E0505
//! # use libstagehand::*;
//! fn once(runtime: Runtime, stream: &Stream) -> Result<()> {
//!     let graph = runtime.capture(stream)?.end()?;
//!     drop(runtime);
//!     graph.launch(stream)?.end()
//! }
//! ```
//!
//! A graph is not dropped while a launch of it lives.
//! ```
//! # use libstagehand::*;
//! fn once(graph: Graph<'_>, stream: &Stream) -> Result<()> {
//!     let launch = graph.launch(stream)?;
//!     drop(launch);
//!     drop(graph);
//!     Ok(())
//! }
//! ```
//! ```compile_fail,E0505
//! # use libstagehand::*;
//! fn once(graph: Graph<'_>, stream: &Stream) -> Result<()> {
//!     let launch = graph.launch(stream)?;
//!     drop(graph);
//!     drop(launch);
//!     Ok(())
//! }
//! ```
//!
//! A stream is not dropped while a view on it lives.
//! ```
//! # use libstagehand::*;
//! fn use_it(runtime: &Runtime, block: Block, stream: Stream) -> Result<()> {
//!     let view = runtime.acquire(block, &stream)?;
//!     drop(view);
//!     drop(stream);
//!     Ok(())
//! }
//! ```
//! ```compile_fail,E0505
//! # use libstagehand::*;
//! fn use_it(runtime: &Runtime, block: Block, stream: Stream) -> Result<()> {
//!     let view = runtime.acquire(block, &stream)?;
//!     drop(stream);
//!     drop(view);
//!     Ok(())
//! }
//! ```
//!
//! A source does not borrow from the caller's stack.
//! ```
//! # use libstagehand::*;
//! # use std::sync::Arc;
//! fn load(weights: Vec<u8>) -> Source {
//!     Source::shared(Arc::new(weights))
//! }
//! ```
//! ```compile_fail,E0521
//! # use libstagehand::*;
//! # use std::sync::Arc;
//! fn load(weights: &[u8]) -> Source {
//!     Source::shared(Arc::new(weights))
//! }
//! ```
//!
//! A callback does not borrow from the caller's stack either, and several threads can call it.
//! ```
//! # use libstagehand::*;
//! # use std::sync::atomic::{AtomicU64, Ordering};
//! fn counted() -> Source {
//!     let calls = AtomicU64::new(0);
//!     Source::fill(64, move |_, _| {
//!         calls.fetch_add(1, Ordering::Relaxed);
//!         Ok(())
//!     })
//! }
//! ```
//! ```compile_fail,E0373
//! # use libstagehand::*;
//! # use std::sync::atomic::{AtomicU64, Ordering};
//! fn counted() -> Source {
//!     let calls = AtomicU64::new(0);
//!     Source::fill(64, |_, _| {
//!         calls.fetch_add(1, Ordering::Relaxed);
//!         Ok(())
//!     })
//! }
//! ```
//! ```compile_fail,E0277
//! # use libstagehand::*;
//! fn counted() -> Source {
//!     let calls = std::cell::Cell::new(0);
//!     Source::fill(64, move |_, _| {
//!         calls.set(calls.get() + 1);
//!         Ok(())
//!     })
//! }
//! ```
//!
//! Steps, scopes and updates do not outlive their runtime.
//! ```
//! # use libstagehand::*;
//! fn visit(runtime: &Runtime, guest: Runtime) -> Result<()> {
//!     let visit = runtime.as_guest(&guest, &GuestOptions::default())?;
//!     visit.end()?;
//!     drop(guest);
//!     Ok(())
//! }
//! ```
//! ```compile_fail,E0505
//! # use libstagehand::*;
//! fn visit(runtime: &Runtime, guest: Runtime) -> Result<()> {
//!     let visit = runtime.as_guest(&guest, &GuestOptions::default())?;
//!     drop(guest);
//!     visit.end()?;
//!     Ok(())
//! }
//! ```
//! ```compile_fail,E0505
//! # use libstagehand::*;
//! fn begin(runtime: Runtime) -> Result<()> {
//!     let step = runtime.step()?;
//!     drop(runtime);
//!     step.end()
//! }
//! ```
//! ```compile_fail,E0515
//! # use libstagehand::*;
//! fn protect<'a>(runtime: Runtime, blocks: &'a [Block]) -> Result<Scope<'a>> {
//!     runtime.protect(blocks)
//! }
//! ```
//!
//! A step of a spiller does not outlive its spiller. A ticket may, because it keeps the spiller.
//! ```
//! # use libstagehand::*;
//! fn end(spiller: Spiller, ticket: Ticket) -> Result<()> {
//!     let step = spiller.step(1)?;
//!     step.end()?;
//!     drop(spiller);
//!     ticket.release()
//! }
//! ```
//! ```compile_fail,E0505
//! # use libstagehand::*;
//! fn end(spiller: Spiller, ticket: Ticket) -> Result<()> {
//!     let step = spiller.step(1)?;
//!     drop(spiller);
//!     step.end()?;
//!     ticket.release()
//! }
//! ```
//!
//! Device memory is named only in an unsafe block.
//! ```
//! # use libstagehand::*;
//! fn back(ticket: &Ticket, address: u64) -> Result<Restored> {
//!     // SAFETY: this is never called.
//!     unsafe { ticket.restore(address, Stream::host()) }
//! }
//! ```
//! ```compile_fail,E0133
//! # use libstagehand::*;
//! fn back(ticket: &Ticket, address: u64) -> Result<Restored> {
//!     ticket.restore(address, Stream::host())
//! }
//! ```
//!
//! The bytes of a source do not outlive the update that gave access to them.
//! ```
//! # use libstagehand::*;
//! fn change(runtime: &Runtime, block: Block) -> Result<()> {
//!     let mut update = runtime.update_sources(&[block])?;
//!     let bytes = update.bytes_mut(block, 0).unwrap();
//!     bytes[0] = 1;
//!     update.end()
//! }
//! ```
//! ```compile_fail,E0505
//! # use libstagehand::*;
//! fn change(runtime: &Runtime, block: Block) -> Result<()> {
//!     let mut update = runtime.update_sources(&[block])?;
//!     let bytes = update.bytes_mut(block, 0).unwrap();
//!     update.end()?;
//!     bytes[0] = 1;
//!     Ok(())
//! }
//! ```
//!
//! A loaded range is not used on another thread, because it belongs to its call.
//! ```compile_fail,E0277
//! # use libstagehand::*;
//! fn elsewhere(block: BlockDesc) -> BlockDesc {
//!     block.on_load(|range| {
//!         std::thread::scope(|scope| {
//!             scope.spawn(|| range.bytes());
//!         });
//!         Ok(())
//!     })
//! }
//! ```
//!
//! These types may be used on any thread (`Send` and `Sync`) or sent to any thread (`Send`).
//! ```
//! # use libstagehand::*;
//! fn on_any_thread<T: Send + Sync>() {}
//! on_any_thread::<Device>();
//! on_any_thread::<Runtime>();
//! on_any_thread::<Stream>();
//! on_any_thread::<PinnedMemory>();
//! on_any_thread::<View<'static>>();
//! on_any_thread::<Views<'static>>();
//! on_any_thread::<MemberSet<'static>>();
//! on_any_thread::<Members<'static>>();
//! on_any_thread::<Step<'static>>();
//! on_any_thread::<Scope<'static>>();
//! on_any_thread::<SourceUpdate<'static>>();
//! on_any_thread::<Capture<'static>>();
//! on_any_thread::<Graph<'static>>();
//! on_any_thread::<Launch<'static>>();
//! on_any_thread::<Spiller>();
//! on_any_thread::<Ticket>();
//! on_any_thread::<SpillStep<'static>>();
//! on_any_thread::<Error>();
//! fn to_any_thread<T: Send>() {}
//! to_any_thread::<Source>();
//! to_any_thread::<BlockDesc>();
//! ```
