//! What stands between the library and closures: a panic never unwinds into C.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// What a closure that panicked returns to the library, which puts the number into its text.
pub(crate) const PANICKED: i32 = i32::MIN;

/// Runs a closure of the user. `Err` holds the text of its panic.
pub(crate) fn guarded<T>(closure: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(closure)).map_err(|payload| {
        let text = panic_text(&*payload);
        // Dropping what was thrown may panic once more: then it is left where it is.
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(second);
        }
        text
    })
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text =
        payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a value that is no text").to_owned()
}

/// Why a closure failed the last time, for the call that tells of it: the library has only a number.
#[derive(Clone, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<String>>>);

impl Failure {
    fn note(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    pub(crate) fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Runs a closure that may fail, and says to the library what came of it: 0, the system's number for an error, −1 where it has none, or
/// [`PANICKED`].
pub(crate) fn answered(failure: &Failure, closure: impl FnOnce() -> io::Result<()>) -> i32 {
    let answer = guarded(|| match closure() {
        Ok(()) => 0,
        Err(error) => {
            failure.note(error.to_string());
            match error.raw_os_error() {
                Some(number) if number != 0 => number,
                _ => -1,
            }
        }
    });
    answer.unwrap_or_else(|text| {
        failure.note(format!("it panicked: {text}"));
        PANICKED
    })
}
