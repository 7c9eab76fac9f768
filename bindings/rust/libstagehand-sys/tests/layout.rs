//! Compares the constants of this crate with the headers, and its version with the loaded library. The compiler checks
//! the layouts against the headers, by the assertions beside the declarations.

use libstagehand_sys::*;

#[test]
fn constants_have_their_values() {
    assert_eq!(SH_STREAM_HOST, u64::MAX);
    assert_eq!((SH_OK, SH_NOT_READY, SH_ERROR_HELD, SH_ERROR_DUPLICATE_LIBRARY), (0, 1, -204, -602));
    assert_eq!((SH_BLOCK_PIN, SH_SOURCE_DEVICE, SH_ACQUIRE_NO_WAIT), (8, 5, 1));
}

#[test]
fn the_library_is_of_the_headers_version() {
    // SAFETY: sh_version() has no preconditions.
    let version = unsafe { sh_version() };
    assert_eq!(version / 1_000_000, SH_VERSION_MAJOR);
    assert!(version / 1_000 % 1_000 >= SH_VERSION_MINOR);
}
