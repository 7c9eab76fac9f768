//! What stands between the library and closures: a panic never unwinds into C.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Why a closure failed the last time, for the calls that tell of it: the library has only a number.
#[derive(Clone, Default)]
pub(crate) struct Failure(Arc<Mutex<Said>>);

#[derive(Default)]
struct Said {
    text: Option<String>,
    told: bool,
}

impl Failure {
    fn note(&self, text: String) {
        *self.lock() = Said { text: Some(text), told: false };
    }

    /// For a call on its block: several may have waited for one load.
    pub(crate) fn tell(&self) -> Option<String> {
        let mut said = self.lock();
        said.told = true;
        said.text.clone()
    }

    /// For a call on another block, if nobody was told of it yet.
    pub(crate) fn tell_once(&self) -> Option<String> {
        let mut said = self.lock();
        let first = !std::mem::replace(&mut said.told, true);
        said.text.clone().filter(|_| first)
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use super::{Failure, PANICKED, answered};
    use std::io::Error;

    #[test]
    fn what_a_closure_said_is_told_to_all_who_waited_for_it() {
        let failure = Failure::default();
        assert_eq!((failure.tell(), failure.tell_once()), (None, None));
        assert_eq!(answered(&failure, || Err(Error::from_raw_os_error(5))), 5);
        assert_eq!(failure.tell(), failure.tell());
        assert!(failure.tell().unwrap().contains("os error 5") && failure.tell_once().is_none());
        assert_eq!(answered(&failure, || panic!("meant to panic, for its text")), PANICKED);
        assert_eq!(failure.tell_once().as_deref(), Some("it panicked: meant to panic, for its text"));
        assert_eq!((answered(&failure, || Ok(())), failure.tell_once()), (0, None));
    }
}
