//! The layer between the library and the closures of the user. No panic unwinds into C.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// Runs a closure of the user. `Err` holds the text of its panic.
pub(crate) fn guarded<T>(closure: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(closure)).map_err(|payload| {
        let text = panic_text(&*payload);
        // The drop of the panic's payload may panic too. The second payload is leaked, so that no third panic follows.
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(second);
        }
        text
    })
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a value that is not a text").to_owned()
}

/// The texts of failed closures. The library gets a number for each failure and puts the number into its error text.
/// Only the newest failures are kept.
struct Failures {
    last: i32,
    texts: VecDeque<(i32, String)>,
}

static FAILURES: Mutex<Failures> = Mutex::new(Failures { last: 0, texts: VecDeque::new() });
const MOST_FAILURES: usize = 256;

fn failed(text: String) -> i32 {
    let mut failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
    failures.last = if failures.last <= -999_999 { -1 } else { failures.last - 1 };
    let number = failures.last;
    failures.texts.push_back((number, text));
    if failures.texts.len() > MOST_FAILURES {
        failures.texts.pop_front();
    }
    number
}

/// Returns the text of the closure's failure whose number is in an error text.
pub(crate) fn said(error: &str) -> Option<String> {
    let (_, rest) = error.rsplit_once("returned ")?;
    let end = rest.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(rest.len());
    let number: i32 = rest[..end].parse().ok()?;
    let failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
    failures.texts.iter().find(|(of, _)| *of == number).map(|(_, text)| text.clone())
}

/// Runs a closure that may fail. Returns 0 on success, or the number under which the failure's text is kept.
pub(crate) fn answered(closure: impl FnOnce() -> io::Result<()>) -> i32 {
    match guarded(|| closure().err().map(|error| error.to_string())) {
        Ok(None) => 0,
        Ok(Some(text)) => failed(text),
        Err(text) => failed(format!("it panicked: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_FAILURES, answered, said};
    use std::io::Error;

    #[test]
    fn what_closures_said_is_found_by_the_number_in_the_error() {
        let number = answered(|| Err(Error::from_raw_os_error(5)));
        let panicked = answered(|| panic!("meant to panic, for its text"));
        assert!(number < 0 && panicked < 0 && number != panicked && answered(|| Ok(())) == 0);
        for _ in 0..2 {
            let text = said(&format!("block 1: fill callback returned {number} for 9 bytes")).unwrap();
            assert!(text.contains("os error 5"), "{text}");
            let text = said(&format!("returned 7: on_load returned {panicked}")).unwrap();
            assert_eq!(text, "it panicked: meant to panic, for its text");
        }
        for error in ["", "it returned nothing", "returned ", "returned -", "returned -999999999999"] {
            assert_eq!(said(error), None);
        }
        for _ in 0..MOST_FAILURES {
            answered(|| Err(Error::other("another")));
        }
        assert_eq!(said(&format!("returned {number}")), None);
    }
}
